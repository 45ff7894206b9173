"""How an arm bears requests that arrive by the wall clock: does it keep up, and who is in time.

    arrivals   | . . . first half . . . | . . . second half . . . |
    kept up                               ended here / came here        below 0.95: falls behind
    later      time per token, waiting included, second half / first    above 1.2: they queue

Either alone may be chance (few requests, long answers late); together they are a queue that grows,
and an arm in whose every repeat one grows is saturated.
"""

from __future__ import annotations

from collections.abc import Sequence

from experiment.config import Config
from experiment.events import RequestFinished
from experiment.experiments.measured import Measured
from experiment.messages import Message, message

# A queue grows where fewer than this share of those who come are ended ...
KEEPS_UP = 0.95
# ... while a token takes more than so many times as long as before.
LATER = 1.2


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
    arrivals = _arrivals(m)
    last = max(arrivals.values(), default=0.0)
    if not m.config.workload.timed or not last:
        return None
    came = sum(last / 2 < moment for moment in arrivals.values())
    ends = (arrivals[r.request] + r.latency_s for r in m.requests)
    return sum(last / 2 < end <= last for end in ends) / came


def later_tokens(m: Measured) -> float | None:
    """Seconds per token of the requests that came in the second half, over those of the first."""
    arrivals = _arrivals(m)
    last = max(arrivals.values(), default=0.0)
    if not m.config.workload.timed or not last:
        return None
    late = [r for r in m.requests if arrivals[r.request] > last / 2]
    early = [r for r in m.requests if arrivals[r.request] <= last / 2]
    first, second = _per_token(early), _per_token(late)
    return second / first if first and second else None


def _per_token(requests: Sequence[RequestFinished]) -> float | None:
    tokens = sum(len(r.tokens) for r in requests)
    return sum(r.latency_s for r in requests) / tokens if tokens else None


def _arrivals(m: Measured) -> dict[int, float]:
    return {request.id: request.arrival for request in m.workload.requests}


def terms(config: Config) -> list[Message]:
    """What a step stands for, how often it was counted, and until when an answer is in time."""
    options = config.experiment.options
    limit = options.get("time_limit_s")
    key = "terms_unlimited" if limit is None else "terms_limit"
    late = message(f"experiments.serving.{key}", limit=limit).model_dump()
    return [message("experiments.serving.terms", step=options.get("step_s"), late=late)]
