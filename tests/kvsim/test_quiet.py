"""Quiet steps in closed form are the steps one by one."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.accounting.slots import PoolShape
from kvsim.latency.clock import DecodeRun
from kvsim.sim.fast.decode_only import DecodeOnlyPool
from kvsim.sim.fast.tally import TallyError

SIZE = 8


@st.composite
def pools(draw: st.DrawFn) -> tuple[DecodeOnlyPool, list[int]]:
    """A pool, and the blocks that its requests open in each of some steps."""
    filled = draw(st.lists(st.integers(1, SIZE), min_size=1, max_size=5))
    free, cached = draw(st.integers(0, 12)), draw(st.integers(0, 12))
    owned = draw(st.integers(0, 3)) + len(filled)
    live = (owned - len(filled)) * SIZE + sum(filled)
    shape = PoolShape(owned + free + cached, SIZE, 1, draw(st.integers(0, 6)))
    openings = [
        sum((one + step) % SIZE == 0 for one in filled) for step in range(draw(st.integers(1, 20)))
    ]
    return DecodeOnlyPool(shape, len(filled), owned, cached, free, live), openings


@given(pools(), st.integers(1, 10**18), st.integers(0, 10**15))
def test_a_stretch_is_its_steps(
    case: tuple[DecodeOnlyPool, list[int]], first: int, slope: int
) -> None:
    pool, openings = case
    opened = [each for each in accumulate(openings) if each <= pool.room]
    if not opened:
        return
    other = DecodeOnlyPool(pool.shape, pool.decodes, pool.owned, pool.cached, pool.free, pool.live)
    part = DecodeRun(len(opened), first, slope)
    levels, held = [], 0
    for count in openings[: len(opened)]:
        levels.append(other.step(count))
        held += other.owned
    interval = pool.advance(part, opened)
    durations = [first + i * slope for i in range(len(opened))]
    for index, values in enumerate(zip(*levels, strict=True)):
        total = sum(v * d for v, d in zip(values, durations, strict=True))
        seen = (interval.sums[index], interval.highs[index], interval.lows[index])
        assert seen == (total, max(values), min(values))
    assert (interval.held, pool) == (held, other)


@pytest.mark.parametrize("opened", [[0, 0], [1, 2]])
def test_blocks_that_do_not_fit_the_tokens_are_an_error(opened: list[int]) -> None:
    """One full block and a request that goes on: it must open one block, and no second one."""
    pool = DecodeOnlyPool(PoolShape(9, 2, 1), 1, 1, 0, 8, 2)
    with pytest.raises(TallyError):
        pool.advance(DecodeRun(2, 1, 0), opened)


@pytest.mark.parametrize("opened", [0, 2])
def test_nor_do_they_in_one_step(opened: int) -> None:
    pool = DecodeOnlyPool(PoolShape(9, 2, 1), 1, 1, 0, 8, 2)
    with pytest.raises(TallyError):
        pool.step(opened)
