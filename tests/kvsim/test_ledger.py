"""Where every slot stands, counted twice: by the ledger and slot by slot."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recount import recount, replay
from scheduling import Workload, workloads
from sweeps import TIMES

from kvsim.accounting.ledger import Ledger, PoolShape, SlotState
from kvsim.contiguous.planners import StaticBatchPlanner
from kvsim.core.blocks import BlockPool
from kvsim.core.scheduler import Request, Scheduler
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


def test_the_worked_example_in_blocks_of_16() -> None:
    scheduler = Scheduler(BlockPool(128, 16))
    for request, prompt in enumerate(PROMPTS):
        scheduler.add(Request(request, prompt, NEW))
    ledger = Ledger(PoolShape(128, 16, 1))
    for _ in range(NEW):
        plan = scheduler.schedule()
        counts = ledger.apply(plan)
        scheduler.complete(plan)
    assert sum(len(table) for table in ledger.tables().values()) == 22
    assert (counts.allocated, counts.live, counts[SlotState.UNWRITTEN]) == (352, 323, 29)
    assert counts.states == {
        SlotState.LIVE: 323,
        SlotState.UNWRITTEN: 29,
        SlotState.FREE: 2048 - 352,
    }
    assert ledger.apply(scheduler.schedule()).states == {SlotState.FREE: 2048}


@settings(max_examples=50 * TIMES)
@given(workloads())
def test_at_every_step_the_states_sum_to_the_pool_and_equal_the_recount(workload: Workload) -> None:
    watermark = workload.config.watermark_blocks
    shape = PoolShape(workload.blocks, workload.block_size, 8, watermark)
    ledger = Ledger(shape)

    def check(scheduler: Scheduler, plan: StepPlan) -> None:
        counts = ledger.apply(plan)
        assert counts == ledger.counts() == recount(shape, ledger.owners)
        assert counts.reserved == shape.slots
        assert all(count > 0 for count in counts.states.values())
        pool = scheduler.pool
        assert ledger.tables() == {r: tuple(pool.table(r)) for r in pool.owners}
        computed = scheduler.computed()
        computed |= {chunk.request: chunk.start + chunk.count for chunk in plan.chunks}
        assert counts.live == ledger.written_slots == sum(computed.values())
        free = pool.num_free * shape.block_size
        assert counts.allocated == shape.slots - free
        assert counts[SlotState.WATERMARK] == min(watermark * shape.block_size, free)
        assert counts[SlotState.FREE] == free - counts[SlotState.WATERMARK]

    workload.run(check)
    assert not ledger.owners


@settings(max_examples=50)
@given(workloads())
def test_a_pool_that_only_holds_what_is_handed_out_reserves_what_is_allocated(
    workload: Workload,
) -> None:
    shape = PoolShape(workload.blocks, workload.block_size, 8, elastic=True)
    for counts in replay(shape, workload.run(lambda scheduler, plan: None)):
        assert counts.reserved == counts.allocated
        assert counts[SlotState.FREE] == counts[SlotState.WATERMARK] == 0


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
