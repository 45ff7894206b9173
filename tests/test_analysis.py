"""From events to figures: what a log says, what contradicts itself in one, and what plans tell."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal

import pytest
from event_makers import (
    BATCH,
    BUDGET,
    PAGED,
    SLOT_BYTES,
    arm_events,
    batch_arm,
    changed,
    head,
    paged_arm,
    plans_of,
    record,
    whole_run,
)

from experiment.analysis.arm_results import arm_results, memory_rows
from experiment.analysis.preemption import PreemptionCounts, preemptions_of
from experiment.analysis.results import ArmResult, Watch
from experiment.events import (
    ArmFailed,
    ArmFinished,
    ArmSkipped,
    Baseline,
    Channel,
    Event,
    ForeignProcesses,
    Keyframe,
    PoolReserved,
    Reading,
    RunFinished,
    Scope,
    Stage,
    Step,
    Usage,
    decode,
)
from experiment.replay.arm_events import split_by_arm
from experiment.replay.timeline import Resumptions, timeline
from experiment.text.messages import Message, message
from kvsim.accounting.ledger import Ledger, PoolShape
from kvsim.core.blocks import BlockPool, Key
from kvsim.core.limits import SchedulerConfig
from kvsim.core.request import Request
from kvsim.core.scheduler import Scheduler
from kvsim.core.step import BlockOp, Chunk, OpKind, StepPlan


def results(events: list[Event]) -> dict[str, ArmResult]:
    return {arm.arm: arm for arm in arm_results(record(events))}


def problem_keys(events: list[Event], arm: str) -> list[str]:
    return [problem.key for problem in results(events)[arm].problems]


def test_a_clean_log_has_no_problem() -> None:
    found = results(whole_run())
    assert list(found) == [BATCH, PAGED]
    for arm in found.values():
        assert (arm.status, arm.reason, arm.problems) == ("finished", None, [])
        assert (arm.new_tokens, arm.generate_s, arm.tokens_per_s) == (6, 3.0, 2.0)
        assert (arm.steps, arm.witnessed_steps, arm.preemptions) == (3, 4, 0)
        assert arm.mean_request_s == 1.5


def test_the_peak_is_the_step_with_the_most_live_slots() -> None:
    found = results(whole_run())
    batch, paged = found[BATCH].peak, found[PAGED].peak
    assert batch is not None
    assert paged is not None
    assert (batch.step, batch.live, batch.padding, batch.unwritten, batch.allocated) == (
        2, 10, 2, 4, 16
    )  # fmt: skip
    assert (paged.step, paged.live, paged.unwritten, paged.allocated) == (2, 10, 0, 10)
    assert (batch.utilisation, paged.utilisation) == (10 / 16, 1.0)


@pytest.mark.parametrize("longer", [1, 2])
def test_means_are_over_time_and_leave_out_what_did_not_compute(longer: int) -> None:
    """The first step takes so many seconds, each other one second."""
    events = changed(
        whole_run(), Step, lambda e: e.model_copy(update={"t_ns": longer * 10**9}), BATCH
    )
    mean = results(events)[BATCH].mean
    assert mean is not None
    assert mean.live == pytest.approx((longer * 6 + 8 + 10) / (longer + 2))
    assert mean.reserved == 16


def test_slots_that_are_never_written_are_told_from_those_written_later() -> None:
    arm = results(whole_run())[BATCH]
    assert arm.peak is not None
    assert arm.peak.never_written == arm.peak.unwritten == 4
    rows, _ = timeline(split_by_arm(record(whole_run()))[0])
    assert (rows[0].unwritten, rows[0].never_written) == (8, 4)


def test_how_many_requests_fit_follows_from_the_budget_and_the_block() -> None:
    """Final lengths 4 and 6: slabs of 8 hold two requests; 8 blocks of 2 hold three (2 + 3 + 2)."""
    found = results(whole_run())
    assert (found[BATCH].fits, found[PAGED].fits) == (2, 3)
    assert found[BATCH].budget_bytes == BUDGET


def test_a_failed_arm_keeps_what_it_had_measured() -> None:
    failure = ArmFailed(arm=PAGED, reason=message("failure.out_of_memory"), exit_code=3)
    events = changed(whole_run(), ArmFinished, lambda e: failure, PAGED)
    arm = results(events)[PAGED]
    assert (arm.status, arm.reason) == ("failed", failure.reason)
    assert arm.peak is not None
    assert (arm.generate_s, arm.tokens_per_s, arm.device_name) == (None, None, None)
    assert results(events)[BATCH].status == "finished"


def test_an_arm_that_died_before_its_cache_has_no_figures() -> None:
    events = [*head(), *paged_arm()[:1]]
    arm = results(events)[PAGED]
    assert (arm.status, arm.peak, arm.mean, arm.fits) == ("failed", None, None, None)
    assert (arm.tensor_bytes, arm.reserved_variation, arm.blocks) == (None, None, None)
    counted = (
        arm.steps, arm.witnessed_steps, arm.preemptions, arm.new_tokens, arm.shared_peak,
        arm.copied_blocks, arm.swapped_blocks,
    )  # fmt: skip
    assert counted == (None,) * 7


FAILED = ArmFailed(arm=PAGED, reason=message("failure.exit", code=1))
SKIPPED = ArmSkipped(arm=PAGED, reason=message("skip.no_vllm"))


@pytest.mark.parametrize(
    ("events", "status", "reason"),
    [
        ([*whole_run(), FAILED], "failed", FAILED.reason),  # though it said that it finished
        (changed(whole_run(), ArmFinished, lambda e: None, PAGED), "failed",
         message("failure.no_end")),
        ([*head(), *paged_arm()[:-1], RunFinished(status="interrupted")], "failed",
         message("error.interrupted")),
        ([*head(), SKIPPED], "skipped", SKIPPED.reason),
    ],
    ids=["failed behind its end", "breaks off", "interrupted", "skipped"],
)  # fmt: skip
def test_how_an_arm_ended_is_told_with_the_reason(
    events: list[Event], status: str, reason: Message
) -> None:
    arm = results(events)[PAGED]
    assert (arm.status, arm.reason, arm.problems) == (status, reason, [])


def test_failures_of_the_preparation_are_no_arm() -> None:
    failure = ArmFailed(arm="prepare", reason=message("failure.exit", code=1))
    assert results([*head(), failure]) == {}


@pytest.mark.parametrize(
    "change",
    [
        lambda e: {"tables": {0: e.tables[1], 1: e.tables[0]}},
        lambda e: {"tables": {0: e.tables[0]}},
        lambda e: {"written": {**e.written, 0: 99}},
        lambda e: {"written": {**e.written, 0: 0}},
        lambda e: {"written": {}},
        lambda e: {"written": {**e.written, 7: 1}},
    ],
    ids=["swapped", "a table too few", "more", "less", "missing", "stranger"],
)
def test_a_picture_of_something_else_is_a_problem(
    change: Callable[[Keyframe], dict[str, object]],
) -> None:
    for arm, other in ((PAGED, BATCH), (BATCH, PAGED)):
        events = changed(
            whole_run(), Keyframe, lambda e: e.model_copy(update=change(e)), arm, nth=1
        )
        assert problem_keys(events, arm) == ["problem.replay"]
        assert problem_keys(events, other) == []


def test_a_plan_of_a_request_that_holds_nothing_is_a_problem_and_the_rows_before_it_stand() -> None:
    plan = StepPlan(1, chunks=(Chunk(9, 0, 1, True),))
    events = changed(whole_run(), Step, lambda e: e.model_copy(update={"plan": plan}), BATCH, nth=1)
    arm = results(events)[BATCH]
    assert [problem.key for problem in arm.problems] == ["problem.replay"]
    assert arm.problems[0].params["step"] == 1
    assert arm.peak is not None
    assert arm.peak.step == 0


@pytest.mark.parametrize("plan", [{}, {"step": "x"}, {"step": 1, "chunks": [[9, 0]]}])
def test_a_line_with_a_damaged_plan_is_no_event(plan: dict[str, Any]) -> None:
    line = {"t_ns": 1, "event": "step", "arm": "paged", "started_ns": 0}
    assert isinstance(decode(json.dumps(line | {"plan": {"step": 1}})), Step)
    with pytest.raises(ValueError, match="step plan"):
        decode(json.dumps(line | {"plan": plan}))


def test_a_lost_step_is_a_problem() -> None:
    events = changed(whole_run(), Step, lambda e: None, PAGED, nth=1)
    assert problem_keys(events, PAGED) == ["problem.replay"]


@pytest.mark.parametrize("off", [-1, 1])
def test_tensors_that_disagree_with_the_tables_are_a_problem(off: int) -> None:
    def change(step: Step) -> Step:
        assert step.written_slots is not None
        return step.model_copy(update={"written_slots": step.written_slots + off})

    events = changed(whole_run(), Step, change, PAGED, nth=1)
    [problem] = results(events)[PAGED].problems
    expected = {"n": 1, "step": 1, "tables": 8, "tensors": 8 + off}
    assert (problem.key, problem.params) == ("problem.witness", expected)


def test_a_step_without_a_count_is_no_problem_and_is_not_counted() -> None:
    events = changed(
        whole_run(), Step, lambda e: e.model_copy(update={"written_slots": None}), PAGED
    )
    arm = results(events)[PAGED]
    assert (arm.problems, arm.witnessed_steps) == ([], 3)


def test_reserved_memory_that_varies_is_said_to_vary() -> None:
    assert results(whole_run())[BATCH].reserved_variation == 0.0
    events = changed(
        whole_run(), PoolReserved, lambda e: e.model_copy(update={"elastic": True}), PAGED
    )
    assert results(events)[PAGED].reserved_variation == pytest.approx((10 - 6) / 10)


def reading(channel: Channel, size: int | None, stage: Stage | None, t_ns: int = 0) -> Reading:
    return Reading(
        t_ns=t_ns, arm=BATCH, channel=channel, scope=Scope.PROCESS, bytes=size, stage=stage
    )


def test_memory_rows_are_the_stages_and_the_largest_sample_of_each_channel() -> None:
    readings = [
        reading(Channel.RSS, 5, Stage.START),
        reading(Channel.RSS, 90, None),
        reading(Channel.RSS, 70, Stage.LAST_STEP),
        reading(Channel.TORCH_ALLOCATED, None, Stage.LAST_STEP),
    ]
    rows = [(row.stage, row.channel, row.bytes) for row in memory_rows(readings)]
    assert rows == [
        ("start", "process.rss", 5),
        ("last_step", "process.rss", 70),
        ("last_step", "torch.allocated", None),
        ("maximum", "process.rss", 90),
    ]


def test_the_process_varies_over_steps_and_requests_and_says_by_which_channel() -> None:
    arm = batch_arm()
    steps = [event for event in arm if isinstance(event, Step)]
    begin, end = steps[0].started_ns, steps[-1].t_ns

    def sample(size: int, t_ns: int) -> Reading:
        return reading(Channel.RSS, size, None).model_copy(update={"t_ns": t_ns})

    readings = [
        sample(1000, begin - 1),  # still loading
        sample(10, begin),
        sample(6, end),
        reading(Channel.RSS, 8, Stage.REQUEST_DONE),
        reading(Channel.RSS, 100, Stage.LAST_STEP),
        sample(1, end + 1),
    ]
    found = results([*head(), *arm, *readings])[BATCH]
    assert found.process_variation == pytest.approx(0.4)
    assert found.process_variation_channel == "process.rss"
    alone = results([*head(), *arm, readings[1]])[BATCH]
    assert (alone.process_variation, alone.process_variation_channel) == (None, None)


@pytest.mark.parametrize(("largest", "delta"), [(900, 200), (None, None)])
def test_the_device_is_compared_with_what_it_held_before(
    largest: int | None, delta: int | None
) -> None:
    before = Baseline(
        arm=PAGED, channel=Channel.NVML_DEVICE, bytes=700, settled=True, waited_s=0.2, foreign=2
    )
    foreign = ForeignProcesses(arm=PAGED, before=2, after=3)
    sizes = [] if largest is None else [750, largest, 800]
    readings = [
        reading(Channel.NVML_DEVICE, size, None).model_copy(update={"arm": PAGED}) for size in sizes
    ]
    other = reading(Channel.RSS, 5000, None).model_copy(update={"arm": PAGED})
    watch = results([*head(), before, *paged_arm(), *readings, other, foreign])[PAGED].watch
    assert (watch.baseline_bytes, watch.device_delta_bytes) == (700, delta)
    assert (watch.device_channel, watch.foreign_before, watch.foreign_after) == (
        "nvml.device", 2, 3,
    )  # fmt: skip


def test_what_is_used_is_a_mean_over_the_generation_and_unknown_is_no_nothing() -> None:
    arm, why = paged_arm(), message("memory.child_ended")
    steps = [event for event in arm if isinstance(event, Step)]
    begin, end = steps[0].started_ns, steps[-1].t_ns

    def watched(*seen: tuple[int, float, float | None]) -> Watch:
        samples = [
            Usage(arm=PAGED, t_ns=t_ns, cpu_cores=cores, gpu_share=None, gpu_memory_share=None,
                  others_cores=others, others_reason=why if others is None else None)
            for t_ns, cores, others in seen
        ]  # fmt: skip
        return results([*head(), *arm, *samples])[PAGED].watch

    before, after = (begin - 1, 9.0, 9.0), (end + 1, 9.0, 9.0)
    during = ((begin, 1.0, 0.5), (begin + 1, 3.0, None), (end, 2.0, 1.5))
    whole, none = watched(before, *during, after), watched(before, after)
    assert (whole.cpu_cores, whole.others_cores) == (2.0, 1.0)
    assert (none.cpu_cores, none.cpu_reason) == (None, message("memory.no_usage_sample"))
    unknown = watched((begin, 1.0, None), (end, 1.0, None), after)
    assert (unknown.cpu_cores, unknown.others_cores, unknown.others_reason) == (1.0, None, why)
    old = {k: v for k, v in unknown.model_dump().items() if not k.startswith("others")}
    assert Watch.model_validate(old).others_cores is None  # as in a run.json of before


def test_tensor_bytes_are_the_largest_that_were_seen() -> None:
    grown = reading(Channel.TENSORS, 999, Stage.LAST_STEP)
    assert results(whole_run())[BATCH].tensor_bytes == 16 * SLOT_BYTES
    assert results([*whole_run(), grown])[BATCH].tensor_bytes == 999


@pytest.mark.parametrize(("preemption", "host_blocks"), [("recompute", 0), ("swap", 64)])
def test_swapped_tokens_are_not_lost(
    preemption: Literal["recompute", "swap"], host_blocks: int
) -> None:
    limits = SchedulerConfig(preemption=preemption, host_blocks=host_blocks)
    plans = plans_of([(5 + number, 12) for number in range(6)], 8, 4, limits)
    preempted = Counter(request for plan in plans for request in plan.preempted)
    assert preempted.total() > 2
    computed = sum(plan.tokens for plan in plans)
    held = sum(cause.computed for plan in plans for cause in plan.causes)
    lost = held if preemption == "recompute" else 0
    assert preemptions_of(plans) == PreemptionCounts(
        preempted.total(), len(preempted), lost, computed
    )


SIZE = 2


def keys(number: int, shared: int) -> Callable[[int], Sequence[Key]]:
    return lambda count: [("all", i) if i < shared else (number, i) for i in range(count)]


def found_late(seed: int) -> tuple[int, int]:
    """Of one run by the plans and by the scheduler, which nobody leaves before it has ended."""
    draw = random.Random(seed)
    config = SchedulerConfig(
        prefix_caching=True,
        max_num_batched_tokens=6,
        policy="priority",
        admission="first_chunk" if seed % 2 else "full",
    )
    scheduler = Scheduler(BlockPool(12, SIZE), config)
    ledger, returns, total, asked = Ledger(PoolShape(12, SIZE, 1)), Resumptions(), 0, 0
    while asked < 12 or scheduler.has_work:
        if asked < 12 and draw.random() < 0.6:
            shared = draw.choice((0, 4, 6))
            prompt, new = draw.randint(8, 14), draw.randint(1, 8)
            request = Request(asked, prompt, new, keys=keys(asked, shared))
            request.priority = draw.randint(0, 3)
            scheduler.add(request)
            asked += 1
        plan = scheduler.schedule()
        returns.lose(plan, ledger.owners)
        ledger.apply(plan)
        total += returns.found_late(plan)
        if plan.chunks:
            scheduler.complete(plan)
    return total, scheduler.found_late


def test_by_the_plans_as_much_is_found_late_as_the_scheduler_counted() -> None:
    runs = [found_late(seed) for seed in range(60)]
    assert [by_plans for by_plans, _ in runs] == [counted for _, counted in runs]
    assert sum(counted > 0 for _, counted in runs) > 3


def never_written(shape: PoolShape, plans: Sequence[StepPlan]) -> list[int]:
    rows, problem = timeline(split_by_arm(record(arm_events(PAGED, shape, plans, {})))[0])
    assert problem is None
    return [row.never_written for row in rows]


def recounted(size: int, plans: Sequence[StepPlan]) -> list[int]:
    """For each plan, follow every slot of every unfinished request until it is given back."""
    return [
        sum(
            _is_never_written(request, slot, plans[place + 1 :])
            for request, slots in _unwritten(size, plans[: place + 1]).items()
            for slot in slots
        )
        for place in range(len(plans))
    ]


def _unwritten(size: int, plans: Sequence[StepPlan]) -> dict[int, set[int]]:
    """Slots, counted from the request's first, that it holds after these plans without content."""
    slots: dict[int, int] = {}
    written: dict[int, set[int]] = {}
    ended: set[int] = set()
    for plan in plans:
        ended |= {finish.request for finish in plan.finished}
        for op in plan.ops:
            assert op.request is not None
            if op.kind in (OpKind.ALLOCATE, OpKind.SWAP_IN):
                slots[op.request] = slots.get(op.request, 0) + len(op.blocks) * size
            elif op.kind is OpKind.SWAP_OUT:
                del slots[op.request]
            elif op.kind is OpKind.FREE:
                del slots[op.request]
                del written[op.request]
        for chunk in plan.chunks:
            positions = range(chunk.start, chunk.start + chunk.count)
            written.setdefault(chunk.request, set()).update(positions)
    return {r: set(range(n)) - written.get(r, set()) for r, n in slots.items() if r not in ended}


def _is_never_written(request: int, slot: int, later: Sequence[StepPlan]) -> bool:
    for plan in later:
        if any(op.request == request and op.kind.name in ("FREE", "SWAP_OUT") for op in plan.ops):
            return True
        if any(c.request == request and c.start <= slot < c.start + c.count for c in plan.chunks):
            return False
    return True


def test_slots_that_a_swap_gives_back_unwritten_are_never_written() -> None:
    """Request 0 writes 5 of 8 slots, is swapped out, comes back and writes the other 3."""
    plans = [
        StepPlan(0, (BlockOp(OpKind.ALLOCATE, 0, (0, 1)),), (Chunk(0, 0, 5, True),)),
        StepPlan(
            1,
            (
                BlockOp(OpKind.SWAP_OUT, 0, (0, 1), (0, 1)),
                BlockOp(OpKind.ALLOCATE, 1, (0,)),
            ),
            (Chunk(1, 0, 4, True),),
            preempted=(0,),
        ),
        StepPlan(
            2,
            (BlockOp(OpKind.FREE, 1, (0,)), BlockOp(OpKind.SWAP_IN, 0, (1, 0), (0, 1))),
            (Chunk(0, 5, 1, True),),
        ),
        StepPlan(3, (), (Chunk(0, 6, 2, True),)),
    ]
    assert never_written(PoolShape(2, 4, 4), plans) == [3, 0, 0, 0] == recounted(4, plans)


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_never_written_is_what_a_count_of_every_slot_finds(preemption: str) -> None:
    blocks, size = 9, 4
    limits = SchedulerConfig(
        max_num_batched_tokens=8, preemption="swap" if preemption == "swap" else "recompute",
        host_blocks=20,
    )  # fmt: skip
    plans = plans_of([(3 + 2 * n, 9 - n) for n in range(8)], blocks, size, limits)
    kinds = {op.kind for plan in plans for op in plan.ops}
    assert any(plan.preempted for plan in plans)
    assert (OpKind.SWAP_OUT in kinds) == (preemption == "swap")
    expected = recounted(size, plans)
    assert never_written(PoolShape(blocks, size, 4), plans) == expected
    assert len(set(expected)) > 3
