"""Where every slot stands, counted twice: by the ledger and slot by slot; damaged plans."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recount import recount

from kvsim.accounting.ledger import Ledger, PoolShape, ReplayError, SlotState
from kvsim.contiguous.planners import StaticBatchPlanner
from kvsim.core.step import BlockOp, Chunk, Finish, FinishReason, OpKind, StepPlan

PROMPTS = (2, 13, 110, 2)
NEW = 50
MAX_LENGTH = 512
STOP = FinishReason.STOP


def batch(slabs: int, size: int, prompts: Sequence[int], steps: int = 0) -> list[StepPlan]:
    """A padded batch of requests 0, 1 ..., decoded so many times."""
    planner = StaticBatchPlanner(slabs, size)
    return [planner.start(list(enumerate(prompts))), *(planner.decode() for _ in range(steps))]


def allocated(step: int, *blocks: int, chunk: Chunk | None = None) -> StepPlan:
    op = BlockOp(OpKind.ALLOCATE, 0, blocks)
    return StepPlan(step, (op,), (chunk,) if chunk else ())


END_1 = StepPlan(1, (), (Chunk(0, 1, 1, True), Chunk(1, 3, 1, False)), (), (Finish(1, STOP),))
SHARED = [
    allocated(0, 1, chunk=Chunk(0, 0, 2, samples=True)),
    StepPlan(1, (BlockOp(OpKind.SHARE, 1, (1,), tokens=2),)),
    StepPlan(2, finished=(Finish(0, STOP),)),
]


@pytest.mark.parametrize(
    ("shape", "plans", "states"),
    [
        # The worked example as a padded batch.
        (
            PoolShape(4, MAX_LENGTH, 1), batch(4, MAX_LENGTH, PROMPTS, NEW - 1),
            {"live": 323, "padding": 313, "unwritten": 1412},
        ),
        # Slabs of 6: one live and padded, one ended, one free of which a part is held back.
        (
            PoolShape(4, 6, 2, watermark_blocks=1), [*batch(4, 6, (1, 3)), END_1],
            {"live": 2, "padding": 2, "unwritten": 2, "finished": 6, "watermark": 6, "free": 6},
        ),
        # The watermark is no more than what is free.
        (PoolShape(2, 4, 1, watermark_blocks=2), [StepPlan(0)], {"watermark": 8}),
        (
            PoolShape(2, 4, 1, watermark_blocks=2), [allocated(0, 1)],
            {"unwritten": 4, "watermark": 4},
        ),
        # Padding over a block boundary counts as padding in each block.
        (
            PoolShape(3, 4, 1), [allocated(0, 2, 0, chunk=Chunk(0, 0, 1, True, padding=5))],
            {"live": 1, "padding": 5, "unwritten": 2, "free": 4},
        ),
        # A block is alive as long as one of its owners is.
        (PoolShape(2, 4, 1), SHARED, {"live": 2, "unwritten": 2, "free": 4}),
        (
            PoolShape(2, 4, 1), [*SHARED, StepPlan(3, finished=(Finish(1, STOP),))],
            {"finished": 4, "free": 4},
        ),
    ],
)  # fmt: skip
def test_states_worked_by_hand(
    shape: PoolShape, plans: list[StepPlan], states: dict[str, int]
) -> None:
    ledger = Ledger(shape)
    for plan in plans:
        counts = ledger.apply(plan)
    assert counts.states == {SlotState(name): count for name, count in states.items()}
    assert counts == recount(shape, ledger.owners)
    assert (counts.reserved, counts.wasted) == (shape.slots, counts.allocated - counts.live)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_owners_of_one_block_that_have_written_more_and_less_of_it(data: st.DataObject) -> None:
    """No scheduler here lets them, so that only this asks: who goes leaves what the others see."""
    shape = PoolShape(3, 4, 1)
    ledger = Ledger(shape)
    first = StepPlan(
        0, (BlockOp(OpKind.ALLOCATE, 0, (2, 0, 1)),),
        (Chunk(0, 0, data.draw(st.integers(1, 12)), samples=True),),
    )  # fmt: skip
    ledger.apply(first)
    for step in range(1, 12):
        ledger.apply(data.draw(changes(ledger, step)))
        assert ledger.counts() == recount(shape, ledger.owners)
        if not ledger.owners:
            break
    assert ledger.owned_blocks == len({b for h in ledger.owners.values() for b in h.table})


@st.composite
def changes(draw: st.DrawFn, ledger: Ledger, step: int) -> StepPlan:
    """Someone more shares some first blocks, writes on where it is, or ends and goes."""
    request = draw(st.sampled_from(sorted(ledger.owners)))
    holder = ledger.owners[request]
    kinds = ["share", "end"] + ["write"] * (holder.written < 4 * len(holder.table))
    kind = draw(st.sampled_from(kinds))
    if kind == "share":
        blocks = tuple(holder.table[: draw(st.integers(1, len(holder.table)))])
        tokens = draw(st.integers(0, 4 * len(blocks)))
        return StepPlan(step, (BlockOp(OpKind.SHARE, 100 + step, blocks, tokens=tokens),))
    if kind == "end":
        gone = BlockOp(OpKind.FREE, request, tuple(holder.table))
        return StepPlan(step, (gone,), finished=(Finish(request, FinishReason.LENGTH),))
    return StepPlan(step, chunks=(Chunk(request, holder.written, 1, samples=True),))


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


def test_the_end_of_a_request_that_holds_nothing_is_no_damage() -> None:
    for reason in (FinishReason.ABORTED, FinishReason.REFUSED):
        ledger = Ledger(SHAPE)
        ledger.apply(BEFORE)
        before = ledger.counts()
        assert ledger.apply(StepPlan(5, finished=(Finish(9, reason),))) == before
