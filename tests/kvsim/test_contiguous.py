"""Contiguous policies as step plans: slabs, left padding, waves, a cache that grows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recount import recount

from kvsim.accounting.ledger import Ledger, PoolShape, SlotState
from kvsim.contiguous.planners import GrowingPlanner, StaticBatchPlanner
from kvsim.core.blocks import OutOfBlocksError
from kvsim.core.step import BlockOp, Chunk, Finish, FinishReason, OpKind, StepPlan

LENGTH = FinishReason.LENGTH


def test_a_padded_batch_from_its_start_to_the_next_one() -> None:
    planner = StaticBatchPlanner(2, 64)
    assert planner.start([(0, 5), (1, 2)], waiting=2) == StepPlan(
        0,
        (BlockOp(OpKind.ALLOCATE, 0, (0,)), BlockOp(OpKind.ALLOCATE, 1, (1,))),
        (Chunk(0, 0, 5, samples=True), Chunk(1, 0, 2, samples=True, padding=3)),
        waiting=2,
    )
    chunks = planner.decode().chunks
    assert chunks == (Chunk(0, 5, 1, samples=True), Chunk(1, 2, 1, samples=True))
    # An ended row keeps its slab and is computed, too; what it yields is thrown away.
    ended = planner.decode([(1, FinishReason.STOP)])
    assert ended.finished == (Finish(1, FinishReason.STOP),)
    assert ended.chunks == (Chunk(0, 6, 1, samples=True), Chunk(1, 3, 1, samples=False))
    assert (planner.tables(), planner.written()) == ({0: [0], 1: [1]}, {0: 7})
    assert planner.release([(0, LENGTH)]) == StepPlan(
        3,
        (BlockOp(OpKind.FREE, 1, (1,)), BlockOp(OpKind.FREE, 0, (0,))),
        finished=(Finish(0, LENGTH),),
    )
    assert (planner.tables(), planner.written()) == ({}, {})
    assert planner.start([(3, 4)]).step == 4
    assert planner.tables() == {3: [0]}  # from the first slab on again


@given(
    batch=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=5),
    waves=st.integers(1, 2),
)
def test_the_ledger_of_a_batch_is_the_recount_and_the_arithmetic(
    batch: list[tuple[int, int]], waves: int
) -> None:
    shape = PoolShape(len(batch), 20, 8)
    planner, ledger = StaticBatchPlanner(shape.blocks, shape.block_size), Ledger(shape)
    longest = max(prompt for prompt, _ in batch)
    padding = sum(longest - prompt for prompt, _ in batch)
    for wave in range(waves):
        first = wave * len(batch)
        plan = planner.start([(first + row, prompt) for row, (prompt, _) in enumerate(batch)])
        for tokens in range(1, max(new for _, new in batch) + 1):
            if tokens > 1:
                ended = [(first + r, LENGTH) for r, (_, n) in enumerate(batch) if n == tokens - 1]
                plan = planner.decode(ended)
            counts = ledger.apply(plan)
            assert counts == recount(shape, ledger.owners)
            assert counts.reserved == counts.allocated == shape.slots
            assert counts[SlotState.PADDING] == padding
            running = [prompt + tokens - 1 for prompt, new in batch if new >= tokens]
            assert counts.live == sum(running)
            rows = [prompt + tokens - 1 for prompt, _ in batch]
            assert ledger.written_slots == sum(rows) + padding
            over = [20 - (longest - prompt) for prompt, new in batch if new < tokens]
            assert counts[SlotState.FINISHED] == sum(over)
        last = max(new for _, new in batch)
        ended = [(first + row, LENGTH) for row, (_, new) in enumerate(batch) if new == last]
        counts = ledger.apply(planner.release(ended))
        assert counts.states == {SlotState.FREE: shape.slots}


def test_a_growing_cache_takes_what_each_step_writes_and_nothing_more() -> None:
    planner = GrowingPlanner(32)
    ledger = Ledger(PoolShape(32, 1, 8, elastic=True))
    reserved = []
    for request, prompt in ((0, 3), (1, 5)):
        plans = [planner.start([request], prompt, waiting=1 - request)]
        assert plans[0].chunks == (Chunk(request, 0, prompt, samples=True),)
        plans += [planner.decode(), planner.decode()]
        for written, plan in enumerate(plans, prompt):
            counts = ledger.apply(plan)
            assert counts.reserved == counts.allocated == counts.live == written
            reserved.append(counts.reserved)
        assert planner.written() == {request: prompt + 2}
        assert planner.tables() == {r: list(t) for r, t in ledger.tables().items()}
        plan = planner.release([(request, LENGTH)])
        assert plan.finished == (Finish(request, LENGTH),)
        reserved.append(ledger.apply(plan).reserved)
    assert reserved == [3, 4, 5, 0, 5, 6, 7, 0]


def test_a_growing_cache_does_not_outgrow_the_maximum_length() -> None:
    planner = GrowingPlanner(4)
    planner.start([0], 4)
    with pytest.raises(OutOfBlocksError):
        planner.decode()


def test_samples_of_a_prompt_grow_together_and_none_is_shared() -> None:
    planner = GrowingPlanner(8, rows=3)
    shape = PoolShape(24, 1, 8, elastic=True)
    ledger = Ledger(shape)
    ledger.apply(planner.start([0, 1, 2], 4))
    plans = [planner.decode(), planner.decode([(1, LENGTH)]), planner.decode()]
    seen = []
    for plan in plans:
        counts = ledger.apply(plan)
        assert counts == recount(shape, ledger.owners)
        seen.append((counts.reserved, counts.live, counts[SlotState.FINISHED]))
    assert seen == [(15, 15, 0), (18, 12, 6), (21, 14, 7)]
    assert ledger.written_slots == 21
    assert planner.written() == {0: 7, 2: 7}
    assert [c.samples for c in plans[-1].chunks] == [True, False, True]
    last = ledger.apply(planner.release([(0, LENGTH), (2, LENGTH)]))
    assert last.reserved == 0
