"""Figures of a row, each computed from an arm's events.

The seconds are the arm's own clock, without the pauses in which memory was measured. They are
accepted only between two bounds from the logged steps:

    steps    ├──────┤  ├──────┤   ├──────┤
    busy      ██████    ██████     ██████        at least the sum of the steps
    span     ├───────────────────────────┤       at most from the first to the last
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from experiment.bench.shares import computing_steps
from experiment.events import RequestFinished, Step, WorkloadReady
from experiment.replay.step_rows import StepRow
from experiment.text.messages import Message, message

# Another program may take the core between the two readings of a step, and before the first step.
# There is no slack below the sum of the steps, which are logged by the same clock.
_SLACK_S, _SLACK_PER_STEP_S, _ROUNDING_S = 0.2, 1e-3, 1e-6


def useful_tokens(requests: Sequence[RequestFinished], asked: WorkloadReady) -> int:
    """Generated tokens, up to the limit of each request."""
    most = {request.id: request.max_new_tokens for request in asked.requests}
    return sum(min(len(ended.tokens), most.get(ended.request, 0)) for ended in requests)


def checked_seconds(
    claimed: float | None, steps: Sequence[Step]
) -> tuple[float | None, Message | None]:
    """The arm's seconds if consistent with the logged steps; else None and the problem."""
    computed = [step for step in steps if step.plan.chunks]
    if claimed is None or not computed:
        return None, message("bench.problem.no_steps")
    busy = sum(step.t_ns - step.started_ns for step in computed) / 1e9
    span = (computed[-1].t_ns - computed[0].started_ns) / 1e9
    slack = _SLACK_PER_STEP_S * len(computed)
    if busy - _ROUNDING_S <= claimed <= span + _SLACK_S + slack:
        return claimed, None
    return None, message("bench.problem.clock", claimed=claimed, busy=busy, span=span)


def running_while_waiting(rows: Sequence[StepRow]) -> tuple[float | None, Message | None]:
    """Time-weighted mean of running requests, over the steps with waiting requests."""
    some = [(r.running, r.t_ns - r.started_ns) for r in rows if r.running and r.waiting]
    total = sum(time for _, time in some)
    if not total:
        return None, message("bench.nobody_waited")
    return sum(count * time for count, time in some) / total, None


def recomputed_tokens(steps: Sequence[Step]) -> int | None:
    """Number of recomputed positions; None without steps."""
    works = list(computing_steps(steps))
    return sum(work.again for work in works) if works else None


def missing_tokens(requests: Sequence[RequestFinished], asked: WorkloadReady) -> Message | None:
    """Report requests with fewer tokens than requested, whose rate is not comparable."""
    made = {ended.request: len(ended.tokens) for ended in requests}
    short = sum(made.get(r.id, 0) < r.max_new_tokens for r in asked.requests)
    return message("bench.problem.lacking", n=short) if short else None


def first_tokens(requests: Sequence[RequestFinished]) -> dict[str, float | None]:
    """Time to first token in seconds: median and maximum over the requests that had one."""
    times = [r.first_token_s for r in requests if r.first_token_s is not None]
    return {
        "first_token_median_s": median(times) if times else None,
        "first_token_max_s": max(times, default=None),
    }


def decode_step(steps: Sequence[Step]) -> dict[str, Any]:
    """Median seconds of pure decode steps with the maximum number of requests."""
    times: dict[int, list[float]] = {}
    for step in steps:
        plan = step.plan
        if plan.chunks and all(chunk.count == 1 and chunk.samples for chunk in plan.chunks):
            seconds = (step.t_ns - step.started_ns) / 1e9
            times.setdefault(len(plan.chunks), []).append(seconds)
    if not times:
        return {}
    most = max(times)
    return {"decode_step_s": median(times[most]), "decode_requests": most}
