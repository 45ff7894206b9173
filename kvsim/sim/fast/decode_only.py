"""The ledger over steps that decode and do nothing else, in closed form.

    step i          0    1    2    3         each writes a token for each of d requests
    opened so far   2    2    5    6         blocks, all of them taken from one place: free ones
                                             above the watermark, those below it, or cached ones
    live            before + d (i + 1)
    unwritten       size x (owned before + opened) - live
    that place      before - opened

Step i takes ``first + i x slope``, so all that the integral of a level over time asks of what is
opened is its sum, and that of ``i`` x it. A property test compares with single steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul, sub
from typing import NamedTuple

from kvsim.accounting.slots import PoolShape
from kvsim.latency.clock import DecodeRun
from kvsim.sim.fast.tally import TallyError, block_levels

# Places in the levels of kvsim.sim.fast.tally.
_LIVE, _CACHED, _UNWRITTEN, _WATERMARK, _FREE = range(5)


class Stretch(NamedTuple):
    """Some steps: integrals over time (slots x attoseconds), highest and lowest slots by level.

    ``duration`` is that of all ``steps``. ``held`` are block-steps: the owned blocks, added up over
    the steps.
    """

    steps: int
    duration: int
    sums: list[int]
    highs: list[int]
    lows: list[int]
    held: int


@dataclass(slots=True)
class QuietPool:
    """A pool of which ``decodes`` requests write a token each in every step.

    Attributes:
        owned, cached, free: blocks.
        live: slots that hold something.
    """

    shape: PoolShape
    decodes: int
    owned: int
    cached: int
    free: int
    live: int

    @property
    def room(self) -> int:
        """Blocks that can be opened before they are taken from somewhere else."""
        above = self.free - self.shape.watermark_blocks
        return above if above > 0 else self.free or self.cached

    def step(self, opened: int) -> tuple[int, int, int, int, int]:
        """One step that opens so many blocks, wherever they are; slots by level in it.

        Raises:
            TallyError: the requests have not just the blocks for what they have written.
        """
        self._open(opened)
        self.live += self.decodes
        levels = block_levels(self.shape, self.live, self.owned, self.cached)
        self._check(levels[_UNWRITTEN], levels[_UNWRITTEN])
        return levels

    def stretch(self, part: DecodeRun, opened: Sequence[int]) -> Stretch:
        """The steps of ``part``; up to each of them ``opened`` blocks were, of the :attr:`room`.

        Raises:
            TallyError: the requests have not just the blocks for what they have written.
        """
        size, decodes = self.shape.block_size, self.decodes
        steps, first, slope = part
        duration, total, all_opened = part.duration, opened[-1], sum(opened)
        highs = self._before_opening()
        lows = highs.copy()
        sums = [level * duration for level in highs]
        written = decodes * part.moment
        sums[_LIVE] += written
        sums[_UNWRITTEN] -= written
        highs[_LIVE] += decodes * (steps - 1)
        gaps = list(map(sub, map(size.__mul__, opened), range(0, decodes * steps, decodes)))
        highs[_UNWRITTEN] += max(gaps)
        lows[_UNWRITTEN] += min(gaps)
        self._check(lows[_UNWRITTEN], highs[_UNWRITTEN])
        if total:
            rising = size * (first * all_opened + slope * sum(map(mul, opened, range(steps))))
            sums[_UNWRITTEN] += rising
            place = self._place()
            sums[place] -= rising
            highs[place] -= size * opened[0]
            lows[place] -= size * total
        held = self.owned * steps + all_opened
        self._open(total)
        self.live += decodes * steps
        return Stretch(steps, duration, sums, highs, lows, held)

    def _before_opening(self) -> list[int]:
        """Slots by level in the first step, if it opened no block."""
        size, live = self.shape.block_size, self.live + self.decodes
        held_back = min(self.shape.watermark_blocks, self.free)
        return [
            live, size * self.cached, size * self.owned - live,
            size * held_back, size * (self.free - held_back),
        ]  # fmt: skip

    def _place(self) -> int:
        if self.free > self.shape.watermark_blocks:
            return _FREE
        return _WATERMARK if self.free else _CACHED

    def _open(self, count: int) -> None:
        self.owned += count
        self.free -= count
        if self.free < 0:
            self.cached += self.free
            self.free = 0

    def _check(self, least: int, most: int) -> None:
        if least < 0 or most > self.decodes * (self.shape.block_size - 1):
            raise TallyError(f"{least} to {most} unwritten slots of {self.decodes} requests")
