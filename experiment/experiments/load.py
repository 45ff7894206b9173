"""Whether an arm sustains requests that arrive by the wall clock, and ends them in time.

    arrivals   | . . . first half . . . | . . . second half . . . |   the rest   |
    kept up                               ended here / arrived here     below 0.95: falls behind
    later      time per token, waiting included, second half / first    above 1.2: they queue
    rest       after the last arrival / all arrivals                    more than a slowest answer
                                                                        and all arrivals: too slow

Falling behind alone may be chance (few requests, long answers); with either of the others the queue
grows. An arm is saturated if its queue grows in every repeat.

If requests wait for memory, latency grows over time. If all share each step, early ones are as slow
as late ones, and only ``rest`` shows saturation. A step takes a + b * requests, and G tokens take G
steps; after the last arrival the longest answer needs at most (longest G) steps, so the rest is at
most a * (longest G) + b * (all G). That exceeds all arrivals plus the longest answer alone, (a + b)
* (longest G), only if b * (all G) exceeds all arrivals: then no concurrency sustains the rate. The
slowest answer at a lower rate is no faster than the longest one alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from experiment.analysis.experiment_results import Number
from experiment.config.schema import Config
from experiment.events import RequestFinished
from experiment.experiments.measured import Measured
from experiment.text.messages import Message, message

# A queue grows if less than this share of arrived requests has ended ...
KEEPS_UP = 0.95
# ... and the time per token has grown by more than this factor.
LATER = 1.2


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """A repeat at a rate.

    ``alone``: the slowest answer at a lower rate, relative to the time of all arrivals at this one;
    None without a lower rate.
    """

    kept_up: Number | None
    later: Number | None
    rest: Number | None
    alone: Number | None

    @property
    def is_saturated(self) -> bool:
        """Whether fewer requests ended than arrived, and latency grew.

        That is: later requests waited longer, or all were slower than arrivals.
        """
        if self.kept_up is None or self.kept_up >= KEEPS_UP:
            return False
        if self.later is not None and self.later > LATER:
            return True
        return self.rest is not None and self.alone is not None and self.rest > 1 + self.alone


def alone_at(rate: float, lower: Iterable[tuple[float, Number]]) -> float | None:
    """:attr:`LoadOutcome.alone` at a rate: the minimum over lower rates.

    ``lower``: rates, and the slowest answer at each relative to all arrivals of that rate. Arrivals
    are the same at all rates, scaled in time.
    """
    return min((slowest * rate / other for other, slowest in lower if other < rate), default=None)


def in_time(m: Measured) -> float | None:
    """Share of requests that ended within ``options.time_limit_s`` of their arrival.

    Every request is served to its end, so that all arms do equal work. None without a limit.
    """
    limit = m.config.experiment.options.get("time_limit_s")
    if not isinstance(limit, int | float) or not m.workload.requests:
        return None
    return sum(r.latency_s <= limit for r in m.requests) / len(m.workload.requests)


def kept_up(m: Measured) -> float | None:
    """Requests that ended in the second half of the arrivals, relative to those that arrived."""
    arrivals, last = _arrivals(m), _last_arrival(m)
    if last is None:
        return None
    arrived = sum(last / 2 < moment for moment in arrivals.values())
    ends = (arrivals[r.request] + r.latency_s for r in m.requests)
    return sum(last / 2 < end <= last for end in ends) / arrived


def later_tokens(m: Measured) -> float | None:
    """Seconds per token of requests of the second half of arrivals, relative to the first."""
    arrivals, last = _arrivals(m), _last_arrival(m)
    if last is None:
        return None
    late = [r for r in m.requests if arrivals[r.request] > last / 2]
    early = [r for r in m.requests if arrivals[r.request] <= last / 2]
    first, second = _per_token(early), _per_token(late)
    return second / first if first and second else None


def rest(m: Measured) -> float | None:
    """Seconds from the last arrival to the last end, relative to those of all arrivals."""
    arrivals, last = _arrivals(m), _last_arrival(m)
    if last is None:
        return None
    return max(arrivals[r.request] + r.latency_s for r in m.requests) / last - 1


def slowest(m: Measured) -> float | None:
    """Seconds of the slowest answer, relative to those of all arrivals."""
    last = _last_arrival(m)
    return None if last is None else max(r.latency_s for r in m.requests) / last


def _last_arrival(m: Measured) -> float | None:
    """Seconds of all arrivals; None without arrival times or finished requests."""
    last = max(_arrivals(m).values(), default=0.0)
    return last if m.config.workload.timed and last and m.requests else None


def _per_token(requests: Sequence[RequestFinished]) -> float | None:
    tokens = sum(len(r.tokens) for r in requests)
    return sum(r.latency_s for r in requests) / tokens if tokens else None


def _arrivals(m: Measured) -> dict[int, float]:
    return {request.id: request.arrival for request in m.workload.requests}


def terms(config: Config) -> list[Message]:
    """Seconds that a step represents, and the time limit of an answer."""
    options = config.experiment.options
    texts = [message("experiments.serving.terms", step=options.get("step_s"))]
    if (limit := options.get("time_limit_s")) is not None:
        texts.append(message("experiments.serving.terms_limit", limit=limit))
    return texts
