"""Where every slot stands, counted twice: by the ledger and slot by slot."""

from __future__ import annotations

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


def test_the_worked_example_as_a_padded_batch() -> None:
    shape = PoolShape(4, MAX_LENGTH, 1)
    planner = StaticBatchPlanner(4, MAX_LENGTH)
    plans = [planner.start(list(enumerate(PROMPTS)))]
    plans += [planner.decode() for _ in range(NEW - 1)]
    counts = replay(shape, plans)[-1]
    assert counts.states == {
        SlotState.LIVE: 323,
        SlotState.PADDING: 313,
        SlotState.UNWRITTEN: 1412,
    }
    assert (counts.reserved, counts.allocated, counts.wasted) == (2048, 2048, 1725)


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


def test_each_state_in_one_small_pool() -> None:
    """Slabs of 6: one live and padded, one ended, one free of which a part is held back."""
    shape = PoolShape(4, 6, 2, watermark_blocks=1)
    planner = StaticBatchPlanner(4, 6)
    ledger = Ledger(shape)
    ledger.apply(planner.start([(0, 1), (1, 3)]))
    counts = ledger.apply(planner.decode([(1, FinishReason.STOP)]))
    assert counts.states == {
        SlotState.LIVE: 2,
        SlotState.PADDING: 2,
        SlotState.UNWRITTEN: 2,
        SlotState.FINISHED: 6,
        SlotState.WATERMARK: 6,
        SlotState.FREE: 6,
    }
    assert (counts.reserved, counts.allocated, counts.live, counts.wasted) == (24, 12, 2, 10)
    assert (shape.slots, shape.block_bytes) == (24, 12)


def test_the_watermark_is_no_more_than_what_is_free() -> None:
    shape = PoolShape(2, 4, 1, watermark_blocks=2)
    ledger = Ledger(shape)
    assert ledger.counts().states == {SlotState.WATERMARK: 8}
    ledger.apply(StepPlan(0, ops=(BlockOp(OpKind.ALLOCATE, 0, (1,)),)))
    assert ledger.counts().states == {SlotState.UNWRITTEN: 4, SlotState.WATERMARK: 4}


def test_padding_over_a_block_boundary_counts_as_padding_in_each_block() -> None:
    shape = PoolShape(3, 4, 1)
    ledger = Ledger(shape)
    op = BlockOp(OpKind.ALLOCATE, 0, (2, 0))
    ledger.apply(StepPlan(0, (op,), (Chunk(0, 0, 1, samples=True, padding=5),)))
    assert ledger.counts() == recount(shape, ledger.owners)
    assert ledger.counts().states == {
        SlotState.LIVE: 1,
        SlotState.PADDING: 5,
        SlotState.UNWRITTEN: 2,
        SlotState.FREE: 4,
    }
    assert ledger.written_slots == 6


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


def test_a_block_is_alive_as_long_as_one_of_its_owners_is() -> None:
    shape = PoolShape(2, 4, 1)
    ledger = Ledger(shape)
    ledger.apply(StepPlan(0, (BlockOp(OpKind.ALLOCATE, 0, (1,)),), (Chunk(0, 0, 2, samples=True),)))
    ledger.apply(StepPlan(1, (BlockOp(OpKind.SHARE, 1, (1,), tokens=2),)))
    ended = ledger.apply(StepPlan(2, finished=(Finish(0, FinishReason.LENGTH),)))
    assert (ended.live, ended[SlotState.FINISHED]) == (2, 0)
    # Rows that have ended are computed on in a batch.
    assert ledger.apply(StepPlan(3, chunks=(Chunk(0, 2, 1, samples=True),))).live > 0
    both = ledger.apply(StepPlan(4, finished=(Finish(1, FinishReason.LENGTH),)))
    assert (both.live, both[SlotState.FINISHED]) == (0, 4)
