"""The ledger of a paged pool from totals, and over decode-only steps in closed form.

    pool      owned blocks │ cached blocks │ free blocks          counted by the block pool
    tokens    written positions of all running requests           counted by the scheduler
              less the extra references to shared blocks

Valid if all shared blocks are full, i.e. for shared prefixes but not for forks that share a partial
block. Decode-only steps:

    step i          0    1    2    3         each writes one token for each of d requests
    allocated       2    2    5    6         blocks so far, from one source: free ones above the
                                             watermark, free ones below it, or cached ones
    live            before + d (i + 1)
    unwritten       size x (owned before + allocated) - live
    source          before - allocated

Step i takes ``first + i x slope``, so the time integrals need only sum(allocated) and
sum(i x allocated). A property test compares both with :class:`kvsim.accounting.ledger.Ledger`.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul, sub
from typing import NamedTuple

from kvsim.accounting.slots import PoolShape
from kvsim.latency.clock import DecodeRun

# Indices of the levels.
_LIVE, _CACHED, _UNWRITTEN, _WATERMARK, _FREE = range(5)


class TallyError(Exception):
    """The totals contradict each other: the states would not sum to the pool."""


def block_levels(
    shape: PoolShape, live: int, owned: int, cached: int
) -> tuple[int, int, int, int, int]:
    """Return the live, cached, unwritten, watermark and free slots.

    Args:
        live: written slots; ``owned`` and ``cached`` are blocks.

    Raises:
        TallyError: more tokens than owned slots.
    """
    size, held_back = shape.block_size, shape.watermark_blocks
    unwritten = owned * size - live
    if live < 0 or unwritten < 0:
        raise TallyError(f"{live} live slots in {owned} blocks of {size}")
    free = shape.blocks - owned - cached
    if held_back > free:
        held_back = free
    return live, cached * size, unwritten, held_back * size, (free - held_back) * size


class StepInterval(NamedTuple):
    """Several steps: time integrals (slots x attoseconds), maxima and minima by level.

    ``duration`` is that of all ``steps``.
    """

    steps: int
    duration: int
    sums: Sequence[int]
    highs: Sequence[int]
    lows: Sequence[int]


def next_blocks(shape: PoolShape, owned: int, cached: int) -> tuple[int, int]:
    """Return the index of the level that new blocks come from, and its number of blocks."""
    free = shape.blocks - owned - cached
    if free > shape.watermark_blocks:
        return _FREE, free - shape.watermark_blocks
    return (_WATERMARK, free) if free else (_CACHED, cached)


def decode_interval(
    shape: PoolShape,
    decodes: int,
    written: tuple[int, int, int],
    line: DecodeRun,
    allocated: Sequence[int],
) -> StepInterval:
    """Return the steps of ``line``, in each of which ``decodes`` requests write one token.

    Args:
        written: live slots, owned and cached blocks before the first step.
        allocated: cumulative blocks by step, all of one source (:func:`next_blocks`).

    Raises:
        TallyError: requests own more or fewer blocks than they have written to.
    """
    size, (live, owned, cached) = shape.block_size, written
    steps, first, slope = line
    duration = line.duration
    highs = list(block_levels(shape, live, owned, cached))
    highs[_LIVE] += decodes
    highs[_UNWRITTEN] -= decodes
    lows = highs.copy()
    sums = [level * duration for level in highs]
    tokens = decodes * line.moment
    sums[_LIVE] += tokens
    sums[_UNWRITTEN] -= tokens
    highs[_LIVE] += decodes * (steps - 1)
    gaps = list(map(sub, map(size.__mul__, allocated), range(0, decodes * steps, decodes)))
    highs[_UNWRITTEN] += max(gaps)
    lows[_UNWRITTEN] += min(gaps)
    if lows[_UNWRITTEN] < 0 or highs[_UNWRITTEN] > decodes * (size - 1):
        found = f"{lows[_UNWRITTEN]} to {highs[_UNWRITTEN]}"
        raise TallyError(f"{found} unwritten slots of {decodes} requests")
    if allocated[-1]:
        weighted = first * sum(allocated) + slope * sum(map(mul, allocated, range(steps)))
        source, _ = next_blocks(shape, owned, cached)
        sums[_UNWRITTEN] += size * weighted
        sums[source] -= size * weighted
        highs[source] -= size * allocated[0]
        lows[source] -= size * allocated[-1]
    return StepInterval(steps, duration, sums, highs, lows)
