"""Why requests were preempted, and what would have prevented it, by simulating each change.

plans      ─► preemptions, tokens lost, reasons of waiting
requests   ─► the same ones with more blocks, fewer sequences, a watermark, shorter ends
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from experiment.analysis.results import Preempting, RemedyResult
from experiment.analysis.simulator_check import (
    RecordedArm,
    engine_config,
    requests_of,
    scheduling_of,
)
from experiment.text.messages import Message, message
from kvsim.core.blocks import BlockPool, PoolError
from kvsim.core.limits import RequestRefusedError, SchedulerConfig
from kvsim.core.step import StepPlan
from kvsim.planning.remedies import Outcome, Remedy, Trial, find_remedies
from kvsim.sim.occupancy import schedule_all

# What a person changes, by change: in a run's configuration, and in a simulation's options.
FLAGS = {
    "run": {
        "blocks": "cache.budget", "max_num_seqs": "engine.max_num_seqs",
        "watermark_blocks": "cache.watermark_blocks", "max_length": "cache.max_length",
    },
    "simulate": {
        "blocks": "--kv-budget", "max_num_seqs": "--max-num-seqs",
        "watermark_blocks": "--watermark-blocks", "max_length": "--max-length",
    },
}  # fmt: skip


# Beyond it, simulating some twenty changes takes longer than is worth waiting for.
_MOST_STEPS = 5_000


class Seen(NamedTuple):
    """Preemptions, of how many requests; tokens that they lost, and all tokens computed."""

    preemptions: int
    requests: int
    lost: int
    computed: int


def preemptions_of(plans: Sequence[StepPlan]) -> Seen:
    """Count what the plans of an arm preempt."""
    preempted: Counter[int] = Counter()
    written: dict[int, int] = {}
    lost = computed = 0
    for plan in plans:
        for request in plan.preempted:
            preempted[request] += 1
            lost += written.pop(request, 0)
        for chunk in plan.chunks:
            written[chunk.request] = chunk.start + chunk.count
            computed += chunk.count
    return Seen(preempted.total(), len(preempted), lost, computed)


def explain_arm(recorded: RecordedArm) -> Preempting | None:
    """Why an arm preempted; None if it preempted nobody, or its limits are not known."""
    seen, engine = preemptions_of(recorded.plans), engine_config(recorded)
    if not seen.preemptions or engine is None:
        return None
    usable = recorded.pool.blocks - recorded.shape.engine_blocks
    limits = scheduling_of(recorded, engine)
    given = Trial(usable, limits.max_num_seqs, limits.watermark_blocks)
    steps = sum(bool(plan.chunks) for plan in recorded.plans)
    before = Outcome(seen.preemptions, steps)
    waits = Counter(str(plan.wait.reason) for plan in recorded.plans if plan.wait)
    return explained(
        seen, waits, given, recorded.pool.block_bytes, before,
        _remedies(recorded, limits, given, before), "run", limits.policy,
    )  # fmt: skip


def _remedies(
    recorded: RecordedArm, limits: SchedulerConfig, given: Trial, before: Outcome
) -> list[Remedy]:
    """Empty where requests fork, whose children a simulation cannot know, and for long runs."""
    forks = any(one.sample_of is not None for one in recorded.workload.requests)
    unfinished = any(not recorded.tokens.get(one.id) for one in recorded.workload.requests)
    if forks or unfinished or recorded.workload.sampling.beam_width > 1:
        return []
    if before.duration > _MOST_STEPS:
        return []
    asked = requests_of(recorded)
    lengths = [(one.prompt_tokens, one.prompt_tokens + one.max_new_tokens - 1) for one in asked]

    def attempt(trial: Trial) -> Outcome:
        limit = trial.max_length or max(end for _, end in lengths)
        cut = [
            replace(one, max_new_tokens=min(one.max_new_tokens, limit - one.prompt_tokens + 1))
            for one in asked
        ]
        changed = replace(
            limits, max_num_seqs=trial.max_num_seqs, watermark_blocks=trial.watermark_blocks
        )
        pool = BlockPool(trial.blocks, recorded.pool.block_size)
        held, preempted = schedule_all(pool, cut, changed)
        return Outcome(preempted, sum(map(bool, held)))

    running = max(len(plan.chunks) for plan in recorded.plans)
    try:
        return find_remedies(given, before, running, lengths, attempt)
    except (PoolError, RequestRefusedError, ValueError):
        return []


def explained(
    seen: Seen,
    waits: Counter[str],
    given: Trial,
    block_bytes: int,
    before: Outcome,
    remedies: Sequence[Remedy],
    where: Literal["run", "simulate"],
    policy: str = "fcfs",
) -> Preempting:
    """Say in words what was counted and simulated.

    Args:
        waits: how often the first in the queue began to wait for each reason.
        before: what ``given`` led to. Durations are steps in a run, seconds in a simulation.
    """
    who = message("preemption.newest" if policy == "fcfs" else "preemption.least_urgent")
    text = message(
        "preemption.why", n=seen.preemptions, requests=seen.requests, lost=seen.lost,
        share=seen.lost / seen.computed if seen.computed else 0.0, who=who.model_dump(),
    )  # fmt: skip
    return Preempting(
        text=text,
        before=message("preemption.before", took=_took(before.duration, where)),
        duration=before.duration,
        waited=_waited(waits),
        waits=dict(waits),
        remedies=[
            RemedyResult(
                **remedy._asdict(), text=_remedy_text(remedy, given.blocks, block_bytes, where)
            )
            for remedy in remedies
        ],
        verdict=_verdict(before, remedies, where),
    )


def _waited(waits: Counter[str]) -> Message | None:
    listed: Message | None = None
    for reason, count in waits.most_common():
        what = message(f"preemption.for.{reason}").model_dump()
        one = message("preemption.reason", what=what, n=count)
        both = {"one": listed.model_dump(), "other": one.model_dump()} if listed else {}
        listed = message("preemption.listed", **both) if both else one
    return message("preemption.waited", reasons=listed.model_dump()) if listed else None


def _took(duration: float, where: Literal["run", "simulate"]) -> dict[str, object]:
    if where == "run":
        return message("preemption.steps", n=round(duration)).model_dump()
    return message("preemption.seconds", s=duration).model_dump()


def _remedy_text(
    remedy: Remedy, blocks: int, block_bytes: int, where: Literal["run", "simulate"]
) -> Message:
    left = message("preemption.none_left")
    if remedy.preemptions:
        left = message("preemption.some_left", n=remedy.preemptions)
    told: dict[str, object] = {
        "flag": FLAGS[where][remedy.change],
        "left": left.model_dump(),
        "took": _took(remedy.duration, where),
    }
    if remedy.change == "blocks":
        size, more = remedy.value * block_bytes, remedy.value / blocks - 1
        return message(
            "preemption.remedy_blocks", size=size, blocks=remedy.value, more=more, **told
        )
    name = "max_length" if remedy.change == "max_length" else "limit"
    return message(f"preemption.remedy_{name}", value=remedy.value, **told)


def _verdict(
    before: Outcome, remedies: Sequence[Remedy], where: Literal["run", "simulate"]
) -> Message | None:
    """The cheapest change that needs no memory and cuts no request."""
    free = [r for r in remedies if r.change in ("max_num_seqs", "watermark_blocks")]
    found = next((remedy for remedy in free if not remedy.preemptions), None)
    if found is None:
        return None
    if found.duration > before.duration:
        return message("preemption.leave")
    flag = FLAGS[where][found.change]
    return message("preemption.cheapest", flag=flag, value=found.value)
