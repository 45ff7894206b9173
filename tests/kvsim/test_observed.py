"""Plans that are derived from block tables say what the scheduler did, to the slot."""

from __future__ import annotations

import pytest
from hypothesis import given
from scheduling import Workload, workloads

from kvsim.accounting.ledger import Ledger, PoolShape, SlotState
from kvsim.core.observed import Decision, ScheduleTrace, ScheduleTraceError
from kvsim.core.scheduler import Scheduler
from kvsim.core.step import (
    BlockOp,
    Chunk,
    FinishReason,
    OpKind,
    StepPlan,
    plan_from_json,
    plan_to_json,
)


@given(workloads())
def test_any_schedule_is_told_by_its_tables(workload: Workload) -> None:
    """Our own scheduler stands in for another's: it gives plans to compare with."""
    shape = PoolShape(workload.blocks, workload.block_size, 1)
    said, derived = Ledger(shape), Ledger(shape)
    trace = ScheduleTrace(workload.block_size)

    def check(scheduler: Scheduler, plan: StepPlan) -> None:
        for finish in plan.finished:
            trace.finished(finish.request, finish.reason)
        tables = {request: scheduler.pool.table(request) for request in scheduler.running}
        found = trace.plan(Decision(tables, plan.preempted, plan.chunks, plan.waiting))
        assert said.apply(plan) == derived.apply(found)
        assert said.tables() == derived.tables()
        assert said.written_slots == derived.written_slots

    workload.run(check)


def chunk(request: int, start: int, count: int) -> Chunk:
    return Chunk(request, start, count, True)


def test_tables_that_grow_or_end_become_allocations_and_frees() -> None:
    trace = ScheduleTrace(4)
    trace.plan(Decision({0: [1], 1: [2]}, (), (chunk(0, 0, 4), chunk(1, 0, 2)), 1))
    trace.finished(1, FinishReason.LENGTH)
    plan = trace.plan(Decision({0: [1, 3]}, (), (chunk(0, 4, 1),), 0))
    assert [(op.kind, op.request, op.blocks) for op in plan.ops] == [
        (OpKind.FREE, 1, (2,)),
        (OpKind.ALLOCATE, 0, (3,)),
    ]
    trace.finished(0, FinishReason.STOP)
    last = trace.release()
    assert [(op.kind, op.request, op.blocks) for op in last.ops] == [(OpKind.FREE, 0, (1, 3))]
    assert (last.step, last.chunks) == (2, ())


def test_a_request_that_is_preempted_and_comes_back_at_once() -> None:
    """A plan cannot say that; vLLM admits nobody in a step in which it preempts."""
    trace = ScheduleTrace(4)
    trace.plan(Decision({0: [1, 2]}, (), (chunk(0, 0, 6),), 0))
    with pytest.raises(ScheduleTraceError):
        trace.plan(Decision({0: [3, 4]}, (0,), (chunk(0, 0, 7),), 0))


def test_a_prefix_hit_shares_blocks_that_live_or_are_kept() -> None:
    """Request 1 finds the first block of request 0 while that lives; 2 finds it after both."""
    trace = ScheduleTrace(4, keeps=lambda block: block in (1, 2))
    ledger = Ledger(PoolShape(8, 4, 1))
    ledger.apply(trace.plan(Decision({0: [1, 2]}, (), (chunk(0, 0, 8),), 0)))
    shared = ledger.apply(trace.plan(Decision({0: [1, 2], 1: [1, 3]}, (), (chunk(1, 4, 2),), 0)))
    assert (shared.live, ledger.shared_blocks) == (10, 1)
    for request in (0, 1):
        trace.finished(request, FinishReason.LENGTH)
    plan = trace.plan(Decision({2: [1, 4]}, (), (chunk(2, 4, 3),), 0))
    counts = ledger.apply(plan)
    assert [op.cached for op in plan.ops if op.kind is OpKind.FREE] == [(2,), (1,)]
    assert (counts.live, counts[SlotState.CACHED]) == (7, 4)
    trace.finished(2, FinishReason.LENGTH)
    evicting = trace.plan(Decision({3: [2]}, (), (chunk(3, 0, 1),), 0))
    assert [op.blocks for op in evicting.ops if op.kind is OpKind.EVICT] == [(2,)]
    assert ledger.apply(evicting)[SlotState.CACHED] == 4


def test_a_block_that_is_handed_out_again_at_once_is_not_kept() -> None:
    """Its new owner has filled it and made it known already when the old one's end is told."""
    trace = ScheduleTrace(4, keeps=lambda block: block in (1, 2))
    ledger = Ledger(PoolShape(4, 4, 1))
    ledger.apply(trace.plan(Decision({0: [1, 2]}, (), (chunk(0, 0, 5),), 0)))
    trace.finished(0, FinishReason.LENGTH)
    plan = trace.plan(Decision({1: [1, 2]}, (), (chunk(1, 4, 4),), 0))
    counts = ledger.apply(plan)
    assert [op.cached for op in plan.ops if op.kind is OpKind.FREE] == [(1,)]
    assert (counts.live, counts[SlotState.CACHED]) == (8, 0)


def test_a_block_that_holds_the_same_as_another_takes_its_place() -> None:
    """Requests 0 and 1 compute the same four tokens at once; then 1 goes on with 0's block."""
    trace = ScheduleTrace(4, keeps=lambda block: block == 1)
    ledger = Ledger(PoolShape(8, 4, 1))
    first = Decision({0: [1, 2], 1: [3, 4]}, (), (chunk(0, 0, 5), chunk(1, 0, 6)), 0)
    assert ledger.apply(trace.plan(first)).live == 11
    plan = trace.plan(Decision({0: [1, 2], 1: [1, 4]}, (), (chunk(1, 6, 1),), 0))
    assert plan.ops == (BlockOp(OpKind.MERGE, 1, (1,), (3,)),)
    assert (ledger.apply(plan).live, ledger.tables()[1]) == (4 + 1 + 3, (1, 4))
    assert plan_from_json(plan_to_json(plan)) == plan
    # Block 1 has lost its first owner and goes on with the other; a third takes it when both end.
    trace.finished(0, FinishReason.LENGTH)
    ledger.apply(trace.plan(Decision({1: [1, 4], 2: [5]}, (), (chunk(2, 0, 4),), 0)))
    trace.finished(1, FinishReason.LENGTH)
    last = trace.plan(Decision({2: [1]}, (), (), 0))
    assert [(op.kind, op.cached) for op in last.ops] == [(OpKind.FREE, (1,)), (OpKind.MERGE, ())]
    counts = ledger.apply(last)
    assert (counts.live, counts[SlotState.CACHED], ledger.tables()) == (4, 0, {2: (1,)})


def test_a_hit_that_is_admitted_before_there_is_room_for_the_rest() -> None:
    trace = ScheduleTrace(4, keeps=lambda block: block == 1)
    ledger = Ledger(PoolShape(3, 4, 1))
    ledger.apply(trace.plan(Decision({0: [1, 2]}, (), (chunk(0, 0, 6),), 1)))
    waits = trace.plan(Decision({0: [1, 2], 1: [1]}, (), (chunk(0, 6, 1),), 0, found={1: 4}))
    assert waits.ops == (BlockOp(OpKind.SHARE, 1, (1,), tokens=4),)
    assert ledger.apply(waits).live == 7
    goes_on = trace.plan(Decision({0: [1, 2], 1: [1, 0]}, (), (chunk(1, 4, 2),), 0))
    assert goes_on.ops == (BlockOp(OpKind.ALLOCATE, 1, (0,)),)
    assert ledger.apply(goes_on).live == 9


@pytest.mark.parametrize("parent_stays", [True, False])
def test_a_fork_shares_what_its_table_names_and_copies_the_rest(parent_stays: bool) -> None:
    """The parent may give way in the very decision in which its fork is seen."""
    trace = ScheduleTrace(4, keeps=lambda block: False)
    ledger = Ledger(PoolShape(8, 4, 1))
    prefill = Decision({0: [1, 2], 9: [5]}, (), (Chunk(0, 0, 6, False), chunk(9, 0, 1)), 0)
    ledger.apply(trace.plan(prefill))
    trace.finished(9, FinishReason.LENGTH)  # whose block the copy goes to
    tables = {0: [1, 2], 1: [1, 5, 6], 2: [1, 7]} if parent_stays else {1: [1, 5, 6], 2: [1, 7]}
    chunks = tuple(chunk(request, 6, 3 if request == 1 else 1) for request in tables)
    gone = () if parent_stays else (0,)
    plan = trace.plan(Decision(tables, gone, chunks, 0, parents={1: 0, 2: 0}))
    expected = [
        BlockOp(OpKind.FREE, 9, (5,)),
        BlockOp(OpKind.SHARE, 1, (1, 2), tokens=6), BlockOp(OpKind.COPY, 1, (5,), (2,)),
        BlockOp(OpKind.SHARE, 2, (1, 2), tokens=6), BlockOp(OpKind.COPY, 2, (7,), (2,)),
        BlockOp(OpKind.ALLOCATE, 1, (6,)),
    ]  # fmt: skip
    if not parent_stays:
        expected.insert(5, BlockOp(OpKind.FREE, 0, (1, 2)))
    assert list(plan.ops) == expected
    # A block in common, and of each its own: 3, 5 and 3 tokens.
    assert ledger.apply(plan).live == 4 + 5 + 3 + (3 if parent_stays else 0)


def test_a_fork_of_a_prompt_that_fills_its_blocks_copies_nothing() -> None:
    trace = ScheduleTrace(4)
    trace.plan(Decision({0: [1]}, (), (Chunk(0, 0, 4, False),), 0))
    tables = {0: [1, 2], 1: [1, 3]}
    plan = trace.plan(Decision(tables, (), (chunk(0, 4, 1), chunk(1, 4, 1)), 0, parents={1: 0}))
    assert [(op.kind, op.request, op.blocks) for op in plan.ops] == [
        (OpKind.SHARE, 1, (1,)), (OpKind.ALLOCATE, 0, (2,)), (OpKind.ALLOCATE, 1, (3,)),
    ]  # fmt: skip


def test_cached_blocks_that_were_given_up_are_free_at_once() -> None:
    trace = ScheduleTrace(4, keeps=lambda block: block in (1, 2))
    ledger = Ledger(PoolShape(8, 4, 1))
    ledger.apply(trace.plan(Decision({0: [1, 2]}, (), (chunk(0, 0, 8),), 0)))
    trace.finished(0, FinishReason.LENGTH)
    assert ledger.apply(trace.plan(Decision({}, (), (), 0)))[SlotState.CACHED] == 8
    plan = trace.plan(Decision({1: [3]}, (), (chunk(1, 0, 2),), 0, evicted=(2, 7)))
    assert plan.ops[0] == BlockOp(OpKind.EVICT, None, (2,))
    assert ledger.apply(plan)[SlotState.CACHED] == 4


@pytest.mark.parametrize("tables", [{}, {0: [5, 2]}, {0: [2]}])
def test_tables_that_change_otherwise_are_no_plan(tables: dict[int, list[int]]) -> None:
    trace = ScheduleTrace(4)
    trace.plan(Decision({0: [1, 2]}, (), (chunk(0, 0, 8),), 0))
    with pytest.raises(ScheduleTraceError):
        trace.plan(Decision(tables, (), (), 0))
