"""Plans that are derived from block tables say what the scheduler did, to the slot."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduling import Workload, workloads

from kvsim.ledger import Ledger, PoolShape, SlotState
from kvsim.observed import Decision, ScheduleTrace, TraceError
from kvsim.scheduler import Scheduler
from kvsim.step import Chunk, FinishReason, OpKind, StepPlan


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
    with pytest.raises(TraceError):
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


@pytest.mark.parametrize("tables", [{}, {0: [5, 2]}])
def test_tables_that_change_otherwise_are_no_plan(tables: dict[int, list[int]]) -> None:
    trace = ScheduleTrace(4)
    trace.plan(Decision({0: [1, 2]}, (), (chunk(0, 0, 8),), 0))
    with pytest.raises(TraceError):
        trace.plan(Decision(tables, (), (), 0))


@given(st.integers(1, 40))
def test_steps_are_numbered(steps: int) -> None:
    trace = ScheduleTrace(4)
    assert [trace.release().step for _ in range(steps)] == list(range(steps))
