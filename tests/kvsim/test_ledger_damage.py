"""A log that contradicts itself is told apart from one that does not."""

from __future__ import annotations

import pytest
from recount import recount, replay

from kvsim.accounting.ledger import Ledger, PoolShape, ReplayError
from kvsim.core.step import BlockOp, Chunk, Finish, FinishReason, OpKind, StepPlan

SHAPE = PoolShape(4, 4, 1)


def allocate(request: int, *blocks: int) -> BlockOp:
    return BlockOp(OpKind.ALLOCATE, request, blocks)


def free(request: int, *blocks: int) -> BlockOp:
    return BlockOp(OpKind.FREE, request, blocks)


# Request 0 holds blocks 0 and 1 with 5 positions written, request 1 block 2 with 3.
BEFORE = StepPlan(
    step=4,
    ops=(allocate(0, 0, 1), allocate(1, 2)),
    chunks=(Chunk(0, 0, 5, samples=True), Chunk(1, 0, 3, samples=True)),
)
END_0 = Finish(0, FinishReason.LENGTH)


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (StepPlan(4), "step 4 after step 4"),
        (StepPlan(3), "step 3 after step 4"),
        (StepPlan(5, ops=(allocate(0, 4),)), "no block 4"),
        (StepPlan(5, ops=(allocate(0, -1),)), "no block -1"),
        (StepPlan(5, ops=(allocate(0, 2),)), "block 2 is not free"),
        (StepPlan(5, ops=(allocate(1, 2),)), "block 2 is not free"),
        (StepPlan(5, ops=(allocate(2, 3, 3),)), "block 3 is not free"),
        (StepPlan(5, ops=(BlockOp(OpKind.ALLOCATE, None, (3,)),)), "names no request"),
        (StepPlan(5, ops=(BlockOp(OpKind.FREE, None, (0, 1)),)), "names no request"),
        (StepPlan(5, ops=(allocate(0, 3),), finished=(END_0,)), "has ended"),
        (StepPlan(5, ops=(free(2, 3),)), "holds nothing"),
        (StepPlan(5, ops=(free(0, 0),)), "frees other blocks"),
        (StepPlan(5, ops=(free(0, 1, 0),)), "frees other blocks"),
        (StepPlan(5, ops=(free(0, 2),)), "frees other blocks"),
        (StepPlan(5, ops=(free(0, 0, 1), free(0, 0, 1))), "holds nothing"),
        (StepPlan(5, preempted=(2,)), "preempted, holds nothing"),
        (StepPlan(5, preempted=(0,)), "preempted, keeps blocks"),
        (StepPlan(5, chunks=(Chunk(2, 0, 1, samples=True),)), "holds nothing"),
        (
            StepPlan(5, ops=(free(0, 0, 1),), chunks=(Chunk(0, 5, 1, samples=True),)),
            "holds nothing",
        ),
        (StepPlan(5, chunks=(Chunk(0, 6, 1, samples=True),)), "skips positions"),
        (StepPlan(5, chunks=(Chunk(0, 4, 1, samples=True),)), "skips positions"),
        (StepPlan(5, chunks=(Chunk(0, 5, 4, samples=True),)), "outgrows its blocks"),
        (StepPlan(5, chunks=(Chunk(1, 3, 1, samples=True, padding=1),)), "outgrows|fillers"),
        (StepPlan(5, chunks=(Chunk(0, 5, 1, samples=True, padding=1),)), "fillers"),
        (StepPlan(5, ops=(BlockOp(OpKind.SHARE, 0, (1,), tokens=1),)), "holds blocks already"),
        (StepPlan(5, ops=(BlockOp(OpKind.SHARE, 9, (3,), tokens=1),)), "nothing to share"),
        (StepPlan(5, ops=(BlockOp(OpKind.SHARE, 9, (1,), tokens=99),)), "more than blocks hold"),
        (StepPlan(5, ops=(BlockOp(OpKind.COPY, 0, (3,)),)), "as many blocks as it copies"),
        (StepPlan(5, ops=(BlockOp(OpKind.COPY, 0, (3,), (2,)),)), "copies another's block"),
        (StepPlan(5, ops=(BlockOp(OpKind.COPY, 0, (1,), (0,)),)), "block 1 is not free"),
        (StepPlan(5, ops=(BlockOp(OpKind.MERGE, 0, (2,)),)), "as many blocks as it gives up"),
        (StepPlan(5, ops=(BlockOp(OpKind.MERGE, 0, (0,), (2,)),)), "not its own alone"),
        (StepPlan(5, ops=(BlockOp(OpKind.MERGE, 0, (3,), (0,)),)), "not full"),
        (StepPlan(5, ops=(BlockOp(OpKind.MERGE, 0, (2,), (0,)),)), "not full"),
        (StepPlan(5, ops=(BlockOp(OpKind.EVICT, None, (3,)),)), "not cached"),
        (StepPlan(5, ops=(BlockOp(OpKind.SWAP_IN, 0, (3,), (0,)),)), "was not swapped out"),
        (StepPlan(5, ops=(BlockOp(OpKind.SWAP_OUT, 0, (3,), (0,)),)), "frees other blocks"),
        (StepPlan(5, ops=(BlockOp(OpKind.FREE, 0, (0, 1), cached=(1,)),)), "cannot stay cached"),
    ],
)
def test_a_damaged_plan_is_refused(plan: StepPlan, says: str) -> None:
    ledger = Ledger(SHAPE)
    ledger.apply(BEFORE)
    with pytest.raises(ReplayError, match=says):
        ledger.apply(plan)


def test_a_log_with_a_step_left_out_is_refused() -> None:
    steps = [BEFORE, StepPlan(5, chunks=(Chunk(0, 5, 1, samples=True),))]
    steps.append(StepPlan(6, chunks=(Chunk(0, 6, 1, samples=True),)))
    assert replay(SHAPE, steps)[-1].live == 10
    with pytest.raises(ReplayError, match="skips"):
        replay(SHAPE, [steps[0], steps[2]])


def test_the_plan_that_is_not_damaged_is_accepted() -> None:
    ledger = Ledger(SHAPE)
    ledger.apply(BEFORE)
    plan = StepPlan(
        step=5,
        finished=(END_0,),
        preempted=(1,),
        ops=(free(0, 0, 1), free(1, 2), allocate(2, 2, 3)),
        chunks=(Chunk(2, 0, 7, samples=True),),
    )
    assert ledger.apply(plan) == recount(SHAPE, ledger.owners)
    assert ledger.tables() == {2: (2, 3)}


def test_the_end_of_a_request_that_holds_nothing_is_no_damage() -> None:
    for reason in (FinishReason.ABORTED, FinishReason.REFUSED):
        ledger = Ledger(SHAPE)
        ledger.apply(BEFORE)
        before = ledger.counts()
        assert ledger.apply(StepPlan(5, finished=(Finish(9, reason),))) == before
