"""Contiguous memory: buddy allocator, reservation, and the plans of slabs and growing caches."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recount import recount

from kvsim.accounting.ledger import Ledger, PoolShape, SlotState
from kvsim.contiguous.buddy import BuddyAllocator, BuddyError, OutOfSlotsError, round_up
from kvsim.contiguous.planners import GrowingPlanner, StaticBatchPlanner
from kvsim.contiguous.reservation import (
    POLICIES,
    ReservationError,
    ReservationPolicy,
    ReservationPool,
    reserved_slots,
)
from kvsim.core.blocks import OutOfBlocksError
from kvsim.core.step import BlockOp, Chunk, Finish, FinishReason, OpKind, StepPlan

Operations = st.lists(st.tuples(st.booleans(), st.integers(1, 70)), max_size=60)


def free_pieces(owner: list[int | None], start: int, size: int) -> list[int]:
    """Sizes of the largest free pieces of powers of two, each at a multiple of its size."""
    if start >= len(owner):
        return []
    if start + size <= len(owner) and owner[start : start + size] == [None] * size:
        return [size]
    half = size // 2
    return free_pieces(owner, start, half) + free_pieces(owner, start + half, half) if half else []


@given(capacity=st.integers(1, 300), operations=Operations)
def test_every_slot_is_held_once_or_free_and_buddies_are_joined(
    capacity: int, operations: list[tuple[bool, int]]
) -> None:
    buddy = BuddyAllocator(capacity)
    owner: list[int | None] = [None] * capacity
    starts: list[int] = []
    for number, (allocate, size) in enumerate(operations):
        if allocate:
            fits = buddy.fits(size)
            assert fits == (round_up(size) <= buddy.largest_free_piece)
            if not fits:
                with pytest.raises(OutOfSlotsError):
                    buddy.allocate(size)
                continue
            piece = buddy.allocate(size)
            assert (piece.requested, piece.size) == (size, round_up(size))
            assert owner[piece.start : piece.start + piece.size] == [None] * piece.size
            owner[piece.start : piece.start + piece.size] = [number] * piece.size
            starts.append(piece.start)
        elif starts:
            piece = buddy.free(starts.pop(size % len(starts)))
            owner[piece.start : piece.start + piece.size] = [None] * piece.size
        assert buddy.free_slots == owner.count(None)
        pieces = free_pieces(owner, 0, 1 << len(owner).bit_length())
        assert buddy.largest_free_piece == max(pieces, default=0)
        assert buddy.holes(size) == sum(piece for piece in pieces if piece < size)
    for start in starts:
        buddy.free(start)
    # As on the first day: its binary digits.
    assert buddy.largest_free_piece == 1 << capacity.bit_length() - 1
    assert buddy.free_slots == capacity


def test_a_pool_of_the_paper_holds_seven_requests_of_2048() -> None:
    buddy = BuddyAllocator(15_728)
    for _ in range(7):
        buddy.allocate(2048)
    assert not buddy.fits(2048)
    assert buddy.free_slots == 1_392
    assert buddy.largest_free_piece == 1024
    assert not buddy.ever_fits(8193)
    assert BuddyAllocator(16_384).ever_fits(8193)


def test_misuse_is_refused_and_changes_nothing() -> None:
    buddy = BuddyAllocator(16)
    piece = buddy.allocate(5)
    for start in (piece.start + 1, 8 - piece.start, 99):
        with pytest.raises(BuddyError):
            buddy.free(start)
    with pytest.raises(ValueError, match="slots"):
        buddy.allocate(0)
    with pytest.raises(ValueError, match="nothing"):
        BuddyAllocator(0)
    assert (buddy.free_slots, buddy.free(piece.start)) == (8, piece)


@pytest.mark.parametrize(
    ("policy", "slots"), [("max", 2048), ("pow2", 100 + 32 - 1), ("oracle", 100 + 25 - 1)]
)
def test_25_new_tokens_are_foreseen_as_32(policy: ReservationPolicy, slots: int) -> None:
    assert reserved_slots(policy, 100, 25, 2048) == slots


@given(prompt=st.integers(1, 500), new=st.integers(1, 500))
def test_pow2_foresees_at_most_twice_the_output_and_each_policy_less_than_the_one_before(
    prompt: int, new: int
) -> None:
    slots = [reserved_slots(policy, prompt, new, 1000) for policy in POLICIES]
    assert slots == sorted(slots, reverse=True)
    assert slots[2] == prompt + new - 1
    assert slots[1] - prompt + 1 < 2 * new
    assert slots[0] == 1000


@pytest.mark.parametrize(
    ("operation", "error", "says"),
    [
        (lambda pool: pool.fits(80, 2), ReservationError, "maximum length"),
        (lambda pool: pool.fits(70, 2), ReservationError, "in a row"),
        (lambda pool: pool.fits(7, 0), ReservationError, "new tokens"),
        (lambda pool: pool.admit(2, 60, 2), OutOfSlotsError, "no free piece"),
        (lambda pool: pool.admit(1, 1, 1), ReservationError, "already"),
        (lambda pool: pool.release(2), ReservationError, "nothing"),
    ],
)
def test_what_can_never_be_served_is_told_apart_from_what_must_wait(
    operation: Callable[[ReservationPool], object], error: type[Exception], says: str
) -> None:
    pool = ReservationPool(100, "oracle", 80)
    pool.admit(1, 60, 2)
    assert not pool.fits(60, 2)
    before = pool.counts(0)
    with pytest.raises(error, match=says):
        operation(pool)
    assert pool.counts(0) == before


Steps = st.lists(st.tuples(st.booleans(), st.integers(1, 40), st.integers(1, 40)), max_size=60)


@given(
    policy=st.sampled_from(POLICIES), capacity=st.integers(80, 400), steps=Steps,
    waiting=st.none() | st.integers(1, 80),
)  # fmt: skip
def test_the_states_sum_to_the_pool_after_every_event(
    policy: ReservationPolicy,
    capacity: int,
    steps: list[tuple[bool, int, int]],
    waiting: int | None,
) -> None:
    # The largest piece of any pool from 80 slots holds 64.
    pool = ReservationPool(capacity, policy, 64)
    plain: dict[int, tuple[int, int, int]] = {}  # request: final, asked, size
    for number, (admits, one, two) in enumerate(steps):
        if admits and one + two - 1 <= 64 and pool.fits(one, two):
            piece = pool.admit(number, one, two)
            plain[number] = (one + two - 1, piece.requested, piece.size)
        elif plain and not admits:
            some = sorted(plain)[one % len(plain)]
            pool.release(some)
            del plain[some]
        final, requested, size = (sum(row[i] for row in plain.values()) for i in range(3))
        counts = pool.counts(final // 2, waiting)
        assert sum(counts) == capacity
        assert counts[:3] == (final // 2, final - final // 2, requested - final)
        assert (counts.rounding, counts.hole + counts.free) == (size - requested, capacity - size)
        assert min(counts) >= 0
        assert counts.never_written == 0 or policy != "oracle"
        if waiting is None:
            assert counts.hole == 0
        else:
            assert pool.buddy.fits(waiting) == (counts.free > 0)


@settings(max_examples=30)
@given(capacity=st.integers(1, 1 << 20), size=st.integers(1, 1 << 20))
def test_an_empty_pool_gives_what_it_said_it_would(capacity: int, size: int) -> None:
    buddy = BuddyAllocator(capacity)
    assert buddy.fits(size) == buddy.ever_fits(size)


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
