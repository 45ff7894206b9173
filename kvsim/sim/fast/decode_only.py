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
from dataclasses import dataclass
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

    ``duration`` is that of all ``steps``. ``held`` is the sum of owned blocks over the steps.
    """

    steps: int
    duration: int
    sums: list[int]
    highs: list[int]
    lows: list[int]
    held: int


@dataclass(frozen=True, slots=True)
class DecodeOnlyPool:
    """A pool in which ``decodes`` requests write one token each in every step.

    Attributes:
        owned, cached, free: blocks before the first step.
        live: written slots before the first step.
    """

    shape: PoolShape
    decodes: int
    owned: int
    cached: int
    free: int
    live: int

    @property
    def room(self) -> int:
        """Blocks that can be allocated before the source changes."""
        above = self.free - self.shape.watermark_blocks
        return above if above > 0 else self.free or self.cached

    def interval(self, part: DecodeRun, allocated: Sequence[int]) -> StepInterval:
        """Return the steps of ``part``; ``allocated`` are cumulative blocks, within :attr:`room`.

        Raises:
            TallyError: requests own more or fewer blocks than they have written to.
        """
        size, decodes = self.shape.block_size, self.decodes
        steps, first, slope = part
        duration, total, allocated_sum = part.duration, allocated[-1], sum(allocated)
        highs = self._before_allocation()
        lows = highs.copy()
        sums = [level * duration for level in highs]
        written = decodes * part.moment
        sums[_LIVE] += written
        sums[_UNWRITTEN] -= written
        highs[_LIVE] += decodes * (steps - 1)
        gaps = list(map(sub, map(size.__mul__, allocated), range(0, decodes * steps, decodes)))
        highs[_UNWRITTEN] += max(gaps)
        lows[_UNWRITTEN] += min(gaps)
        if lows[_UNWRITTEN] < 0 or highs[_UNWRITTEN] > decodes * (size - 1):
            raise TallyError(
                f"{lows[_UNWRITTEN]} to {highs[_UNWRITTEN]} unwritten slots of {decodes} requests"
            )
        if total:
            rising = size * (first * allocated_sum + slope * sum(map(mul, allocated, range(steps))))
            sums[_UNWRITTEN] += rising
            source = self._source()
            sums[source] -= rising
            highs[source] -= size * allocated[0]
            lows[source] -= size * total
        held = self.owned * steps + allocated_sum
        return StepInterval(steps, duration, sums, highs, lows, held)

    def _before_allocation(self) -> list[int]:
        """Return the slots by level in the first step without new blocks."""
        size, live = self.shape.block_size, self.live + self.decodes
        held_back = min(self.shape.watermark_blocks, self.free)
        return [
            live, size * self.cached, size * self.owned - live,
            size * held_back, size * (self.free - held_back),
        ]  # fmt: skip

    def _source(self) -> int:
        if self.free > self.shape.watermark_blocks:
            return _FREE
        return _WATERMARK if self.free else _CACHED
