"""Buddy allocator and reservation: against a plain model, and the paper's own figures."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.contiguous.buddy import BuddyAllocator, BuddyError, OutOfSlotsError, round_up
from kvsim.contiguous.reservation import (
    POLICIES,
    ReservationError,
    ReservationPolicy,
    ReservationPool,
    reserved_slots,
)

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
        (lambda pool: pool.write(1, 62), ReservationError, "writes 62"),
    ],
)
def test_what_can_never_be_served_is_told_apart_from_what_must_wait(
    operation: Callable[[ReservationPool], object], error: type[Exception], says: str
) -> None:
    pool = ReservationPool(100, "oracle", 80)
    pool.admit(1, 60, 2)
    assert not pool.fits(60, 2)
    before = pool.counts()
    with pytest.raises(error, match=says):
        operation(pool)
    assert pool.counts() == before


Steps = st.lists(
    st.tuples(st.sampled_from("awr"), st.integers(1, 40), st.integers(1, 40)), max_size=60
)


@given(
    policy=st.sampled_from(POLICIES), capacity=st.integers(80, 400), steps=Steps,
    waiting=st.none() | st.integers(1, 80),
)  # fmt: skip
def test_the_states_sum_to_the_pool_after_every_event(
    policy: ReservationPolicy, capacity: int, steps: list[tuple[str, int, int]], waiting: int | None
) -> None:
    # The largest piece of any pool from 80 slots holds 64.
    pool = ReservationPool(capacity, policy, 64)
    plain: dict[int, list[int]] = {}  # request: final, written, asked, size
    for number, (kind, one, two) in enumerate(steps):
        some = sorted(plain)[one % len(plain)] if plain else None
        if kind == "a" and one + two - 1 <= 64 and pool.fits(one, two):
            piece = pool.admit(number, one, two)
            plain[number] = [one + two - 1, 0, piece.requested, piece.size]
        elif kind == "w" and some is not None:
            tokens = min(two, plain[some][0] - plain[some][1])
            pool.write(some, tokens)
            plain[some][1] += tokens
        elif kind == "r" and some is not None:
            pool.release(some)
            del plain[some]
        counts = pool.counts(waiting)
        assert counts.total == capacity
        final, written, requested, size = (sum(row[i] for row in plain.values()) for i in range(4))
        assert counts.live == written
        assert counts.written_later == final - written
        assert counts.never_written == requested - final
        assert counts.rounding == size - requested
        assert counts.hole + counts.free == capacity - size
        if waiting is None or not counts.free:
            assert counts.hole == 0 or waiting is not None
        assert min(counts.hole, counts.free, counts.never_written) >= 0
        if policy == "oracle":
            assert counts.never_written == 0
        if waiting is not None:
            assert pool.buddy.fits(waiting) == (counts.free > 0)


@settings(max_examples=30)
@given(capacity=st.integers(1, 1 << 20), size=st.integers(1, 1 << 20))
def test_an_empty_pool_gives_what_it_said_it_would(capacity: int, size: int) -> None:
    buddy = BuddyAllocator(capacity)
    assert buddy.fits(size) == buddy.ever_fits(size)
