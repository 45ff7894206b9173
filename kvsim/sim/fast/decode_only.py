"""The ledger over decode-only steps, in closed form.

    step i          0    1    2    3         each writes one token for each of d requests
    allocated       2    2    5    6         blocks so far, from one source: free ones above the
                                             watermark, free ones below it, or cached ones
    live            before + d (i + 1)
    unwritten       size x (owned before + allocated) - live
    source          before - allocated

Step i takes ``first + i x slope``, so the time integrals need only sum(allocated) and
sum(i x allocated). A property test compares with single steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul, sub
from typing import NamedTuple

from kvsim.accounting.slots import PoolShape
from kvsim.latency.clock import DecodeRun
from kvsim.sim.fast.tally import TallyError, block_levels

# Indices of the levels of kvsim.sim.fast.tally.
_LIVE, _CACHED, _UNWRITTEN, _WATERMARK, _FREE = range(5)


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


@dataclass(slots=True)
class DecodeOnlyPool:
    """A pool in which ``decodes`` requests write one token each in every step.

    Attributes:
        owned, cached, free: blocks.
        live: written slots.
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

    def step(self, allocated: int) -> tuple[int, int, int, int, int]:
        """Simulate one step that allocates ``allocated`` blocks; return the slots by level.

        Raises:
            TallyError: requests own more or fewer blocks than they have written to.
        """
        self._allocate(allocated)
        self.live += self.decodes
        levels = block_levels(self.shape, self.live, self.owned, self.cached)
        self._check(levels[_UNWRITTEN], levels[_UNWRITTEN])
        return levels

    def advance(self, part: DecodeRun, allocated: Sequence[int]) -> StepInterval:
        """Simulate the steps of ``part``; ``allocated`` are cumulative blocks, within :attr:`room`.

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
        self._check(lows[_UNWRITTEN], highs[_UNWRITTEN])
        if total:
            rising = size * (first * allocated_sum + slope * sum(map(mul, allocated, range(steps))))
            sums[_UNWRITTEN] += rising
            source = self._source()
            sums[source] -= rising
            highs[source] -= size * allocated[0]
            lows[source] -= size * total
        held = self.owned * steps + allocated_sum
        self._allocate(total)
        self.live += decodes * steps
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

    def _allocate(self, count: int) -> None:
        self.owned += count
        self.free -= count
        if self.free < 0:
            self.cached += self.free
            self.free = 0

    def _check(self, least: int, most: int) -> None:
        if least < 0 or most > self.decodes * (self.shape.block_size - 1):
            raise TallyError(f"{least} to {most} unwritten slots of {self.decodes} requests")
