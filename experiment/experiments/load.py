"""How an arm bears requests that arrive by the wall clock: does it keep up, and who is in time.

    arrivals   | . . . first half . . . | . . . second half . . . |   the rest   |
    kept up                               ended here / came here        below 0.95: falls behind
    later      time per token, waiting included, second half / first    above 1.2: they queue
    rest       after the last one came / all arrivals                   more than a slowest answer
                                                                        and all arrivals: too slow

Falling behind alone may be chance (few requests, long answers); with either of the others it is a
queue that grows, and an arm in whose every repeat one grows is saturated.

Who waits for memory is later and later. Who shares a step with all that came is not: early ones
are as slow as late ones, and the rest tells. A step takes a + b times its requests, and G tokens
take G such steps; behind the last arrival the longest answer needs at most (longest G) steps, so
the rest is at most a * (longest G) + b * (all G). That is more than all arrivals and the longest
answer alone, (a + b) * (longest G), only where b * (all G) is more than all arrivals: then it would
not keep up with any number of requests at a time. The slowest answer at a lower rate is no faster
than the longest one alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from experiment.analysis.experiment_results import Number
from experiment.config.schema import Config
from experiment.events import RequestFinished
from experiment.experiments.measured import Measured
from experiment.text.messages import Message, message

# A queue grows where fewer than this share of those who come are ended ...
KEEPS_UP = 0.95
# ... while a token takes more than so many times as long as before.
LATER = 1.2


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """A repeat at a rate.

    ``alone``: the slowest answer at a lower rate, over the time of all arrivals at this one; None
    where there is no lower rate.
    """

    kept_up: Number | None
    later: Number | None
    rest: Number | None
    alone: Number | None

    @property
    def falls_behind(self) -> bool:
        """Fewer ended than came."""
        return self.kept_up is not None and self.kept_up < KEEPS_UP

    @property
    def latency_grows(self) -> bool:
        """Late ones waited longer, or all were slower than arrivals."""
        if self.later is not None and self.later > LATER:
            return True
        return self.rest is not None and self.alone is not None and self.rest > 1 + self.alone

    @property
    def is_saturated(self) -> bool:
        """Both."""
        return self.falls_behind and self.latency_grows


def all_saturated(outcomes: Sequence[LoadOutcome]) -> bool:
    """In a single repeat the machine may have been busy with something else."""
    return bool(outcomes) and all(each.is_saturated for each in outcomes)


def alone_at(rate: float, lower: Iterable[tuple[float, Number]]) -> float | None:
    """The fastest of the slowest answers of lower rates, over the time of all arrivals at this one.

    ``lower``: rates, and the slowest answer at each over all arrivals of that rate, which are the
    same ones further apart.
    """
    return min((slowest * rate / other for other, slowest in lower if other < rate), default=None)


def in_time(m: Measured) -> float | None:
    """Share of the requests that ended within ``options.time_limit_s`` of their arrival.

    Every request is served to its end, so that all arms do equal work; who is late counts as
    failed. None where there is no limit.
    """
    limit = m.config.experiment.options.get("time_limit_s")
    if not isinstance(limit, int | float) or not m.workload.requests:
        return None
    return sum(r.latency_s <= limit for r in m.requests) / len(m.workload.requests)


def kept_up(m: Measured) -> float | None:
    """Requests that ended in the second half of the arrivals, over those that came in it."""
    arrivals, last = _arrivals(m), _last_arrival(m)
    if last is None:
        return None
    came = sum(last / 2 < moment for moment in arrivals.values())
    ends = (arrivals[r.request] + r.latency_s for r in m.requests)
    return sum(last / 2 < end <= last for end in ends) / came


def later_tokens(m: Measured) -> float | None:
    """Seconds per token of the requests that came in the second half, over those of the first."""
    arrivals, last = _arrivals(m), _last_arrival(m)
    if last is None:
        return None
    late = [r for r in m.requests if arrivals[r.request] > last / 2]
    early = [r for r in m.requests if arrivals[r.request] <= last / 2]
    first, second = _per_token(early), _per_token(late)
    return second / first if first and second else None


def rest(m: Measured) -> float | None:
    """Seconds from the last arrival until all are served, over those that all arrivals took."""
    arrivals, last = _arrivals(m), _last_arrival(m)
    if last is None:
        return None
    return max(arrivals[r.request] + r.latency_s for r in m.requests) / last - 1


def slowest(m: Measured) -> float | None:
    """Seconds of the slowest answer, over those that all arrivals took."""
    last = _last_arrival(m)
    return None if last is None else max(r.latency_s for r in m.requests) / last


def _last_arrival(m: Measured) -> float | None:
    """Seconds that all arrivals took; None without a clock of theirs, or where nobody ended."""
    last = max(_arrivals(m).values(), default=0.0)
    return last if m.config.workload.timed and last and m.requests else None


def _per_token(requests: Sequence[RequestFinished]) -> float | None:
    tokens = sum(len(r.tokens) for r in requests)
    return sum(r.latency_s for r in requests) / tokens if tokens else None


def _arrivals(m: Measured) -> dict[int, float]:
    return {request.id: request.arrival for request in m.workload.requests}


def terms(config: Config) -> list[Message]:
    """What a step stands for, how often it was counted, and until when an answer is in time."""
    options = config.experiment.options
    told = [message("experiments.serving.terms", step=options.get("step_s"))]
    if (limit := options.get("time_limit_s")) is not None:
        told.append(message("experiments.serving.terms_limit", limit=limit))
    return told
