"""Plans that are derived from block tables say what the scheduler did, to the slot."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduling import add, make_scheduler

from kvsim.accounting.ledger import Ledger, PoolShape, SlotState
from kvsim.core.blocks import blocks_needed
from kvsim.core.observed import Decision, ScheduleTrace, ScheduleTraceError
from kvsim.core.step import (
    BlockOp,
    Chunk,
    FinishReason,
    OpKind,
    plan_from_json,
    plan_to_json,
)


@given(
    requests=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 12)), min_size=1, max_size=7),
    size=st.integers(1, 8), spare=st.integers(0, 9), seqs=st.integers(1, 6),
    tokens=st.integers(1, 40), aborts=st.integers(0, 20),
)  # fmt: skip
def test_any_schedule_is_told_by_its_tables(
    requests: list[tuple[int, int]], size: int, spare: int, seqs: int, tokens: int, aborts: int
) -> None:
    """Our own scheduler stands in for another's: it gives plans to compare with."""
    needed = max(blocks_needed(sum(each) - 1, size) for each in requests)
    shape = PoolShape(needed + spare, size, 1)
    limits = {"max_num_seqs": seqs, "max_num_batched_tokens": tokens}
    scheduler = make_scheduler(shape.blocks, size, **limits)
    add(scheduler, *requests)
    said, derived, trace = Ledger(shape), Ledger(shape), ScheduleTrace(size)
    while scheduler.has_work:
        plan = scheduler.schedule()
        for finish in plan.finished:
            trace.finished(finish.request, finish.reason)
        tables = {request: scheduler.pool.table(request) for request in scheduler.running}
        found = trace.plan(Decision(tables, plan.preempted, plan.chunks, plan.waiting))
        assert said.apply(plan) == derived.apply(found)
        assert said.tables() == derived.tables()
        assert said.written_slots == derived.written_slots
        scheduler.complete(plan)
        if plan.step == aborts:
            scheduler.abort(0)


def chunk(request: int, start: int, count: int) -> Chunk:
    return Chunk(request, start, count, True)


def allocate(request: int, *blocks: int) -> BlockOp:
    return BlockOp(OpKind.ALLOCATE, request, blocks)


def share(request: int, tokens: int, *blocks: int) -> BlockOp:
    return BlockOp(OpKind.SHARE, request, blocks, tokens=tokens)


def free(request: int, *blocks: int, cached: tuple[int, ...] = ()) -> BlockOp:
    return BlockOp(OpKind.FREE, request, blocks, cached=cached)


EVICT_2 = BlockOp(OpKind.EVICT, None, (2,))
FORKS = (
    share(1, 6, 1, 2), BlockOp(OpKind.COPY, 1, (5,), (2,)),
    share(2, 6, 1, 2), BlockOp(OpKind.COPY, 2, (7,), (2,)),
)  # fmt: skip
# What each decision shows: requests that ended before it, the decision, its operations (None: not
# compared), and live and cached slots after it. Blocks of 4; ``keeps``: blocks that stay cached.
Shown = tuple[tuple[int, ...], Decision, list[BlockOp] | None, int, int]
SCHEDULES: dict[str, tuple[tuple[int, ...], list[Shown]]] = {
    "tables that grow or end": (
        (),
        [
            ((), Decision({0: [1], 1: [2]}, (), (chunk(0, 0, 4), chunk(1, 0, 2)), 1), None, 6, 0),
            (
                (1,), Decision({0: [1, 3]}, (), (chunk(0, 4, 1),), 0),
                [free(1, 2), allocate(0, 3)], 5, 0,
            ),
            ((0,), Decision({}, (), (), 0), [free(0, 1, 3)], 0, 0),
        ],
    ),
    # Request 1 finds the first block of request 0 while that lives; 2 finds it after both.
    "a prefix hit shares blocks that live or are kept": (
        (1, 2),
        [
            ((), Decision({0: [1, 2]}, (), (chunk(0, 0, 8),), 0), None, 8, 0),
            (
                (), Decision({0: [1, 2], 1: [1, 3]}, (), (chunk(1, 4, 2),), 0),
                [share(1, 4, 1), allocate(1, 3)], 10, 0,
            ),
            (
                (0, 1), Decision({2: [1, 4]}, (), (chunk(2, 4, 3),), 0),
                [free(0, 1, 2, cached=(2,)), free(1, 1, 3, cached=(1,)), share(2, 4, 1),
                 allocate(2, 4)], 7, 4,
            ),
            (
                (2,), Decision({3: [2]}, (), (chunk(3, 0, 1),), 0),
                [free(2, 1, 4, cached=(1,)), EVICT_2, allocate(3, 2)], 1, 4,
            ),
        ],
    ),
    # The new owner has filled block 2 and made it known already when the old one's end is told.
    "a block that is handed out again at once is not kept": (
        (1, 2),
        [
            ((), Decision({0: [1, 2]}, (), (chunk(0, 0, 5),), 0), None, 5, 0),
            (
                (0,), Decision({1: [1, 2]}, (), (chunk(1, 4, 4),), 0),
                [free(0, 1, 2, cached=(1,)), share(1, 4, 1), allocate(1, 2)], 8, 0,
            ),
        ],
    ),
    # Requests 0 and 1 compute the same four tokens at once; then 1 goes on with 0's block, which
    # loses its first owner; a third takes it when both have ended.
    "a block that holds the same as another takes its place": (
        (1,),
        [
            (
                (), Decision({0: [1, 2], 1: [3, 4]}, (), (chunk(0, 0, 5), chunk(1, 0, 6)), 0),
                None, 11, 0,
            ),
            (
                (), Decision({0: [1, 2], 1: [1, 4]}, (), (chunk(1, 6, 1),), 0),
                [BlockOp(OpKind.MERGE, 1, (1,), (3,))], 4 + 1 + 3, 0,
            ),
            ((0,), Decision({1: [1, 4], 2: [5]}, (), (chunk(2, 0, 4),), 0), None, 11, 0),
            (
                (1,), Decision({2: [1]}, (), (), 0),
                [free(1, 1, 4, cached=(1,)), BlockOp(OpKind.MERGE, 2, (1,), (5,))], 4, 0,
            ),
        ],
    ),
    "a hit that is admitted before there is room for the rest": (
        (1,),
        [
            ((), Decision({0: [1, 2]}, (), (chunk(0, 0, 6),), 1), None, 6, 0),
            (
                (), Decision({0: [1, 2], 1: [1]}, (), (chunk(0, 6, 1),), 0, found={1: 4}),
                [share(1, 4, 1)], 7, 0,
            ),
            (
                (), Decision({0: [1, 2], 1: [1, 0]}, (), (chunk(1, 4, 2),), 0),
                [allocate(1, 0)], 9, 0,
            ),
        ],
    ),
    "cached blocks that were given up are free at once": (
        (1, 2),
        [
            ((), Decision({0: [1, 2]}, (), (chunk(0, 0, 8),), 0), None, 8, 0),
            ((0,), Decision({}, (), (), 0), [free(0, 1, 2, cached=(1, 2))], 0, 8),
            (
                (), Decision({1: [3]}, (), (chunk(1, 0, 2),), 0, evicted=(2, 7)),
                [EVICT_2, allocate(1, 3)], 2, 4,
            ),
        ],
    ),
    # The block of request 9 goes to a copy. A block in common, and of each its own.
    "a fork shares what its table names and copies the rest": (
        (),
        [
            (
                (),
                Decision({0: [1, 2], 9: [5]}, (), (Chunk(0, 0, 6, False), chunk(9, 0, 1)), 0),
                None, 7, 0,
            ),
            (
                (9,),
                Decision(
                    {0: [1, 2], 1: [1, 5, 6], 2: [1, 7]}, (),
                    (chunk(0, 6, 1), chunk(1, 6, 3), chunk(2, 6, 1)), 0, parents={1: 0, 2: 0},
                ),
                [free(9, 5), *FORKS, allocate(1, 6)], 4 + 3 + 5 + 3, 0,
            ),
        ],
    ),
    "a parent that gives way in the very decision in which its fork is seen": (
        (),
        [
            (
                (),
                Decision({0: [1, 2], 9: [5]}, (), (Chunk(0, 0, 6, False), chunk(9, 0, 1)), 0),
                None, 7, 0,
            ),
            (
                (9,),
                Decision(
                    {1: [1, 5, 6], 2: [1, 7]}, (0,), (chunk(1, 6, 3), chunk(2, 6, 1)), 0,
                    parents={1: 0, 2: 0},
                ),
                [free(9, 5), *FORKS, free(0, 1, 2), allocate(1, 6)], 4 + 5 + 3, 0,
            ),
        ],
    ),
    "a fork of a prompt that fills its blocks copies nothing": (
        (),
        [
            ((), Decision({0: [1]}, (), (Chunk(0, 0, 4, False),), 0), None, 4, 0),
            (
                (),
                Decision(
                    {0: [1, 2], 1: [1, 3]}, (), (chunk(0, 4, 1), chunk(1, 4, 1)), 0, parents={1: 0}
                ),
                [share(1, 4, 1), allocate(0, 2), allocate(1, 3)], 6, 0,
            ),
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_decision_becomes_operations(name: str) -> None:
    kept, shown = SCHEDULES[name]
    trace, ledger = ScheduleTrace(4, keeps=kept.__contains__), Ledger(PoolShape(8, 4, 1))
    for step, (ended, decision, ops, live, cached) in enumerate(shown):
        for request in ended:
            trace.finished(request, FinishReason.LENGTH)
        plan = trace.plan(decision)
        counts = ledger.apply(plan)
        assert plan.step == step
        assert ops is None or list(plan.ops) == ops
        assert (counts.live, counts[SlotState.CACHED]) == (live, cached)
        assert plan_from_json(plan_to_json(plan)) == plan
        assert ledger.tables() == {r: tuple(blocks) for r, blocks in decision.tables.items()}


@pytest.mark.parametrize(
    ("tables", "preempted"), [({}, ()), ({0: [5, 2]}, ()), ({0: [2]}, ()), ({0: [3, 4]}, (0,))]
)
def test_tables_that_change_otherwise_are_no_plan(
    tables: dict[int, list[int]], preempted: tuple[int, ...]
) -> None:
    """The last one is preempted and comes back at once: vLLM admits nobody in such a step."""
    trace = ScheduleTrace(4)
    trace.plan(Decision({0: [1, 2]}, (), (chunk(0, 0, 8),), 0))
    with pytest.raises(ScheduleTraceError):
        trace.plan(Decision(tables, preempted, (), 0))
