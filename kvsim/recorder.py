"""Integrals over time while a simulation runs: exact sums, peaks, and a bounded series.

    value   ▁▁▃▃▃▃▇▇▇▇▅▅        every step adds  value x duration  to an integer sum
    series  |     |     |       now and then the sums so far are kept; a bucket is a difference
                                of two of them, so merging buckets loses nothing

Sums are integers (slots or requests x attoseconds): no order of adding changes them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

# Above this, lengths of the queue are told apart by their leading bits only.
_EXACT_BITS = 10


@dataclass(slots=True)
class Mark:
    """All sums at one moment of the series."""

    now: int
    sums: tuple[int, ...]


class Spread:
    """How long a count had each of its values.

    Counts from 1,024 on are rounded down by less than 1 in 512, so that a queue that only ever
    grows does not take memory for each of its lengths; the largest stays exact.
    """

    def __init__(self) -> None:
        self.times: defaultdict[int, int] = defaultdict(int)
        self.total = 0
        self.most = 0

    def add(self, count: int, duration: int) -> None:
        """``count`` for ``duration``."""
        if count > self.most:
            self.most = count
        self.total += count * duration
        if count >> _EXACT_BITS:
            low = count.bit_length() - _EXACT_BITS
            count = count >> low << low
        self.times[count] += duration

    def quantile(self, share: float) -> int | None:
        """The smallest count that is not exceeded for ``share`` of the time; None without any."""
        whole = sum(self.times.values())
        if not whole:
            return None
        passed, count = 0, 0
        for count in sorted(self.times):
            passed += self.times[count]
            if passed >= share * whole:
                break
        return count


class Recorder:
    """Sums of levels over time, of what runs and waits, and a series of at most ``points``.

    Args:
        names: of the levels, in the order in which they are given.
        points: most marks that the series keeps; at least 2.
    """

    def __init__(self, names: Sequence[str], points: int = 512) -> None:
        self.names = tuple(names)
        self.now = 0
        self.busy = 0
        self.steps = 0
        self.sums = [0] * len(self.names)
        self.peaks = [0] * len(self.names)
        self.lows: list[int | None] = [None] * len(self.names)
        self.running = Spread()
        self.waiting = Spread()
        self.marks: list[Mark] = [Mark(0, (0,) * (len(self.names) + 2))]
        self.next_mark = 0
        self._points = max(2, points)
        self._width = 1

    def idle(self, until: int, levels: Sequence[int]) -> None:
        """Nothing runs and nothing waits until then."""
        self._hold(levels, until - self.now)
        self.now = until
        if until >= self.next_mark:
            self.mark()

    def step(self, levels: Sequence[int], running: int, waiting: int, duration: int) -> None:
        """One step, at whose levels the pool stays for its duration."""
        self.steps += 1
        self.busy += duration
        self._hold(levels, duration, running, waiting)
        self.now += duration
        if self.now >= self.next_mark:
            self.mark()

    def run(
        self,
        levels: Sequence[int],
        slopes: Sequence[int],
        running: int,
        waiting: int,
        steps: int,
        duration: int,
        moment: int,
    ) -> None:
        """Steps between which level ``i`` changes by ``slopes[i]``; see ``DecodeRun.moment``."""
        self.steps += steps
        self.busy += duration
        self._hold(levels, duration, running, waiting)
        last = steps - 1
        for index, slope in enumerate(slopes):
            if slope:
                self.sums[index] += slope * moment
                self._meet(index, levels[index] + slope * last)
        self.now += duration
        if self.now >= self.next_mark:
            self.mark()

    def mark(self) -> None:
        """Keep the sums of now; where there are too many, every second one goes."""
        sums = (*self.sums, self.running.total, self.waiting.total)
        self.marks.append(Mark(self.now, sums))
        if len(self.marks) > self._points:
            del self.marks[1:-1:2]
            self._width = max(2 * self._width, self.now // self._points)
        self.next_mark = self.now + self._width

    def _hold(
        self, levels: Sequence[int], duration: int, running: int = 0, waiting: int = 0
    ) -> None:
        sums = self.sums
        for index, level in enumerate(levels):
            sums[index] += level * duration
            self._meet(index, level)
        self.running.add(running, duration)
        self.waiting.add(waiting, duration)

    def _meet(self, index: int, level: int) -> None:
        if level > self.peaks[index]:
            self.peaks[index] = level
        low = self.lows[index]
        if low is None or level < low:
            self.lows[index] = level
