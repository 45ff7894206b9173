"""Second part of an ordinary run: more concurrent requests than slabs.

The prompts of the workload are queued several times over, on the engine and cache of the arm. Steps
are not logged, and memory is not counted.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from experiment.engine.sampling import SamplingParams
from experiment.events import Progress, SecondPartRun
from experiment.events.sampling import SamplingConfig
from experiment.process.wire import is_out_of_memory
from experiment.text.messages import Message, message

if TYPE_CHECKING:
    from experiment.arms.base import ArmRun
    from experiment.arms.task import ArmTask
    from experiment.engine.engine import Engine

COPIES = 5
LIMIT_S = 30.0
_BOTH = {"slabs", "paged"}


def has_second_part(task: ArmTask) -> bool:
    """Whether the run compares slabs and blocks, with one sequence per request."""
    config, workload = task.config, task.workload
    return (
        config.experiment.name is None
        and _BOTH.issubset(config.arm_names)
        and not config.engine.prefix_caching
        and workload.sampling.n == workload.sampling.beam_width == 1
        and not any(request.arrival for request in workload.requests)
    )


def copies(task: ArmTask) -> int:
    """Maximum number of copies of the workload that are queued at once."""
    return COPIES if has_second_part(task) else 1


def sampling_of(asked: SamplingConfig, request: int) -> SamplingParams:
    """Sampling parameters of a request, with its own seed; further samples add their index."""
    return SamplingParams(
        temperature=asked.temperature,
        top_k=asked.top_k,
        top_p=asked.top_p,
        seed=asked.seed + request,
        stop_token_ids=frozenset(asked.stop_token_ids),
        min_new_tokens=asked.min_new_tokens,
    )


@dataclass
class _Totals:
    """What has run so far; times are nanoseconds of the arm's clock."""

    finished: int = 0
    tokens: int = 0
    running: list[tuple[int, int]] = field(default_factory=list)  # requests of a step, and its time

    def mean_running(self) -> float | None:
        took = sum(time for _, time in self.running)
        return sum(count * time for count, time in self.running) / took if took else None


def run_second_part(run: ArmRun, engine: Engine) -> None:
    """Run it, if enabled, on an engine without requests, and log the result."""
    if not has_second_part(run.task):
        return
    workload = run.task.workload
    requests = workload.requests * COPIES
    for number, request in enumerate(requests):
        sampling = sampling_of(workload.sampling, number)
        tokens, most = request.token_ids, request.max_new_tokens
        engine.add(number, tokens, most, sampling, priority=request.priority)
    engine.pool.disable_poisoning()
    totals, reason, started_ns, began = _Totals(), None, time.monotonic_ns(), run.now()
    try:
        reason = _generate(run, engine, totals, len(requests))
    except Exception as error:
        if not is_out_of_memory(repr(error)):
            raise
        reason = message("failure.out_of_memory")
    run.emit(
        SecondPartRun(
            arm=run.task.arm,
            started_ns=started_ns,
            requests=len(requests),
            finished=totals.finished,
            running=max((count for count, _ in totals.running), default=None),
            mean_running=totals.mean_running(),
            tokens=totals.tokens,
            seconds=(run.now() - began) / 1e9,
            reason=reason,
        )
    )


def _generate(run: ArmRun, engine: Engine, totals: _Totals, requests: int) -> Message | None:
    """Run until all requests have finished or the time is over; return why not all have."""
    began = run.now()
    while engine.scheduler.has_work:
        start = run.now()
        if start - began > LIMIT_S * 1e9:
            return message("second_part.too_slow", seconds=LIMIT_S)
        outcome, finished = engine.step()
        run.synchronize()
        totals.running.append((len(outcome.plan.chunks), run.now() - start))
        totals.tokens += len(outcome.tokens)
        totals.finished += len(finished)
        task = message("progress.second_part", n=requests)
        run.emit(Progress(task=task, done=totals.finished, total=requests))
    return None
