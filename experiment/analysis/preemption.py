"""Explain preemptions, and find settings that avoid them by simulation.

plans      ─► preemptions, tokens lost, reasons of waiting
requests   ─► simulations with more blocks, fewer sequences, a watermark, another admission
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from experiment.analysis.finding_text import joined, param
from experiment.analysis.results import Preempting, RemedyResult
from experiment.analysis.simulator_check import (
    RecordedArm,
    engine_config,
    requests_of,
    scheduling_of,
)
from experiment.text.messages import Message, message
from experiment.text.sizes import exact_size
from kvsim.core.blocks import BlockPool, PoolError
from kvsim.core.limits import RequestRefusedError, SchedulerConfig
from kvsim.core.step import OpKind, StepPlan
from kvsim.planning.remedies import Outcome, Remedy, Trial, find_remedies
from kvsim.sim.occupancy import schedule_all

Where = Literal["run", "simulate"]
# Setting of each change: in a run's configuration, and in a simulation's options.
FLAGS: Mapping[str, Mapping[str, str]] = {
    "run": {
        "blocks": "cache.budget", "max_num_seqs": "engine.max_num_seqs",
        "watermark_blocks": "cache.watermark_blocks", "admission": "engine.admission",
    },
    "simulate": {
        "blocks": "--kv-budget", "max_num_seqs": "--max-num-seqs",
        "watermark_blocks": "--watermark-blocks", "admission": "--policy",
    },
}  # fmt: skip
_ADMISSION = {"run": "full", "simulate": "paged"}
# Ratio of durations below which they are equal.
_SAME = 1.01
# Longer runs are not simulated: there are some twenty changes.
_MAX_STEPS = 5_000


class PreemptionCounts(NamedTuple):
    """Preemptions, preempted requests, lost tokens, and all computed tokens."""

    preemptions: int
    requests: int
    lost: int
    computed: int


def preemptions_of(plans: Sequence[StepPlan]) -> PreemptionCounts:
    """Count the preemptions in the plans of an arm; swapped-out tokens are not lost."""
    preempted: Counter[int] = Counter()
    written: dict[int, int] = {}
    lost = computed = 0
    for plan in plans:
        preempted.update(plan.preempted)
        if plan.preempted:
            kept = {op.request for op in plan.ops if op.kind is OpKind.SWAP_OUT}
            lost += sum(written.pop(request, 0) for request in set(plan.preempted) - kept)
        for chunk in plan.chunks:
            written[chunk.request] = chunk.start + chunk.count
            computed += chunk.count
    return PreemptionCounts(preempted.total(), len(preempted), lost, computed)


def explain_arm(recorded: RecordedArm) -> Preempting | None:
    """Explain the preemptions of an arm; None if it has none, or its limits are unknown."""
    counts, engine = preemptions_of(recorded.plans), engine_config(recorded)
    if not counts.preemptions or engine is None:
        return None
    usable = recorded.pool.blocks - recorded.shape.engine_blocks
    limits = scheduling_of(recorded, engine)
    given = Trial(usable, limits.max_num_seqs, limits.watermark_blocks, limits.admission)
    steps = sum(bool(plan.chunks) for plan in recorded.plans)
    before = Outcome(counts.preemptions, steps)
    waits = Counter(str(plan.wait.reason) for plan in recorded.plans if plan.wait)
    return describe_preemptions(
        counts, waits, given, recorded.pool.block_bytes, before,
        _remedies(recorded, limits, given, before), "run", limits.policy,
    )  # fmt: skip


def _remedies(
    recorded: RecordedArm, limits: SchedulerConfig, given: Trial, before: Outcome
) -> list[Remedy]:
    """Simulate changes; empty for long runs and for forks, which a simulation cannot predict."""
    forks = any(one.sample_of is not None for one in recorded.workload.requests)
    unfinished = any(not recorded.tokens.get(one.id) for one in recorded.workload.requests)
    if forks or unfinished or recorded.workload.sampling.beam_width > 1:
        return []
    if before.duration > _MAX_STEPS:
        return []
    asked = requests_of(recorded)

    def attempt(trial: Trial) -> Outcome:
        changed = replace(
            limits,
            max_num_seqs=trial.max_num_seqs,
            watermark_blocks=trial.watermark_blocks,
            admission=trial.admission,
        )
        pool = BlockPool(trial.blocks, recorded.pool.block_size)
        held, preempted = schedule_all(pool, asked, changed)
        return Outcome(preempted, sum(map(bool, held)))

    running = max(len(plan.chunks) for plan in recorded.plans)
    try:
        return find_remedies(given, running, attempt)
    except (PoolError, RequestRefusedError, ValueError):
        return []


def describe_preemptions(
    counts: PreemptionCounts,
    waits: Counter[str],
    given: Trial,
    block_bytes: int,
    before: Outcome,
    remedies: Sequence[Remedy],
    where: Where,
    policy: str = "fcfs",
) -> Preempting:
    """Describe counted preemptions and simulated remedies.

    Args:
        waits: number of times that the first request in the queue began to wait, by reason.
        before: outcome of ``given``. Durations are in steps in a run, in seconds in a simulation.
    """
    victim = message("preemption.newest" if policy == "fcfs" else "preemption.least_urgent")
    text = message(
        "preemption.why" if counts.lost else "preemption.swapped", n=counts.preemptions,
        requests=counts.requests, lost=counts.lost,
        share=counts.lost / counts.computed if counts.computed else 0.0, who=victim.model_dump(),
    )  # fmt: skip
    tried = [(each, _setting(each, given.blocks, block_bytes, where)) for each in remedies]
    return Preempting(
        text=text,
        before=message("preemption.before", took=_duration(before, where)),
        duration=before.duration,
        waited=_wait_text(waits),
        waits=dict(waits),
        remedies=[
            RemedyResult(**remedy._asdict(), text=_remedy_text(remedy, setting, where))
            for remedy, setting in tried
        ],
        verdict=_verdict(before, tried),
    )


def _wait_text(waits: Counter[str]) -> Message | None:
    reasons = joined(
        "preemption.listed",
        (
            message("preemption.reason", what=param(message(f"preemption.for.{reason}")), n=count)
            for reason, count in waits.most_common()
        ),
    )
    return message("preemption.waited", reasons=param(reasons)) if reasons else None


def _duration(outcome: Outcome | Remedy, where: Where) -> dict[str, object]:
    if where == "run":
        return message("preemption.steps", n=round(outcome.duration)).model_dump()
    first = outcome.first_token_s
    if first is None:
        return message("preemption.seconds", s=outcome.duration).model_dump()
    return message("preemption.seconds_first", s=outcome.duration, first=first).model_dump()


def _setting(remedy: Remedy, blocks: int, block_bytes: int, where: Where) -> Message:
    """The setting of a remedy, with sizes that can be typed exactly."""
    flag = FLAGS[where][remedy.change]
    if remedy.change == "blocks":
        size, more = exact_size(remedy.value * block_bytes), remedy.value / blocks - 1
        return message("preemption.blocks", flag=flag, size=size, blocks=remedy.value, more=more)
    value = _ADMISSION[where] if remedy.change == "admission" else remedy.value
    return message("preemption.limit", flag=flag, value=value)


def _remedy_text(remedy: Remedy, setting: Message, where: Where) -> Message:
    change, left = setting.model_dump(), remedy.preemptions
    if not left:
        return message("preemption.remedy", setting=change, took=_duration(remedy, where))
    if remedy.change != "admission":
        return message("preemption.remedy_none", setting=change, n=left)
    return message("preemption.remedy_left", setting=change, took=_duration(remedy, where), n=left)


def _verdict(before: Outcome, tried: Sequence[tuple[Remedy, Message]]) -> Message | None:
    """The fastest change that needs no additional memory, of those with a duration."""
    free = [
        each for each in tried
        if each[0].change == "admission" or (each[0].change != "blocks" and not each[0].preemptions)
    ]  # fmt: skip
    if not free:
        return None
    remedy, setting = min(free, key=lambda each: each[0].duration)
    if remedy.duration > before.duration * _SAME:
        return message("preemption.leave")
    return message("preemption.cheapest", setting=setting.model_dump())
