"""Time integrals of a simulation: exact sums, extremes, and a time series of bounded size.

    value   ▁▁▃▃▃▃▇▇▇▇▅▅        every step adds  value x duration  to an integer sum
    series  |     |     |       the sums are saved at some points; an interval is the difference of
                                two of them, so merging intervals is lossless

Sums are integers (slots or requests x attoseconds), so they do not depend on the order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import mul

from kvsim.sim.fast.decode_only import StepInterval

# Steps that are added up in one batch.
_BATCH = 1024
# Counts with more bits are rounded down to this many leading bits.
_EXACT_BITS = 10


@dataclass(slots=True)
class SeriesPoint:
    """All sums at one point of the time series."""

    now: int
    sums: tuple[int, ...]
    preempted: int = 0


class TimeHistogram:
    """Time-weighted histogram of a count.

    Counts from 1,024 on are rounded down by less than 1 in 512 to bound memory; ``most`` is exact.
    """

    def __init__(self) -> None:
        self.times: defaultdict[int, int] = defaultdict(int)
        self.total = 0
        self.most = 0

    def add(self, counts: Sequence[int], durations: Sequence[int]) -> None:
        """Add each count with its duration."""
        most = max(counts)
        self.most = max(self.most, most)
        self.total += sum(map(mul, counts, durations))
        times = self.times
        rounded: Iterable[int] = map(_leading_bits, counts) if most >> _EXACT_BITS else counts
        for count, duration in zip(rounded, durations, strict=True):
            times[count] += duration

    def quantile(self, share: float) -> int | None:
        """Return the smallest count not exceeded for ``share`` of the time; None without any."""
        whole = sum(self.times.values())
        if not whole:
            return None
        passed, count = 0, 0
        for count in sorted(self.times):
            passed += self.times[count]
            if passed >= share * whole:
                break
        return count


def _leading_bits(count: int) -> int:
    low = max(0, count.bit_length() - _EXACT_BITS)
    return count >> low << low


class Recorder:
    """Integrates levels, running and waiting requests over time; keeps a time series.

    Args:
        names: names of the levels, in order.
        points: most points of the series, at least 2.
    """

    def __init__(self, names: Sequence[str], points: int = 512) -> None:
        self.names = tuple(names)
        self.now = 0
        self.busy = 0
        self.steps = 0
        self.preempted = 0  # preemptions so far; updated by the policies
        self.sums = [0] * len(self.names)
        self.peaks = [0] * len(self.names)
        self.lows: list[int | None] = [None] * len(self.names)
        self.running = TimeHistogram()
        self.waiting = TimeHistogram()
        self.points: list[SeriesPoint] = [SeriesPoint(0, (0,) * (len(self.names) + 2))]
        self.next_point_at = 0
        self._max_points = max(2, points)
        self._width = 1
        # Not in the sums yet: levels with durations, and intervals with known integrals; running
        # and waiting requests with durations.
        self._levels: list[Sequence[int]] = []
        self._durations: list[int] = []
        self._intervals: list[StepInterval] = []
        self._running: list[int] = []
        self._waiting: list[int] = []
        self._all_durations: list[int] = []

    def idle(self, until: int, levels: Sequence[int]) -> None:
        """Record idle time until ``until``."""
        self._record(levels, 0, 0, until - self.now)

    def step(self, levels: Sequence[int], running: int, waiting: int, duration: int) -> None:
        """Record one step; ``levels`` hold for its duration.

        A plan without chunks takes no time and is not counted as a step.
        """
        self.steps += duration > 0
        self.busy += duration
        self._record(levels, running, waiting, duration)

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
        """Record steps between which level ``i`` grows by ``slopes[i]``; see ``DecodeRun``."""
        self.steps += steps
        self.busy += duration
        for index, slope in enumerate(slopes):
            self.sums[index] += slope * moment
            last = levels[index] + slope * (steps - 1)
            self._update_extremes(index, last, last)
        self._record(levels, running, waiting, duration)

    def add_interval(self, interval: StepInterval, running: int, waiting: int) -> None:
        """Record steps whose integrals are known."""
        duration = interval.duration
        self.steps += interval.steps
        self.busy += duration
        self._intervals.append(interval)
        self._pass(running, waiting, duration)

    def add_point(self) -> None:
        """Add a point to the series; if there are too many, remove every second one."""
        self.add_up()
        sums = (*self.sums, self.running.total, self.waiting.total)
        self.points.append(SeriesPoint(self.now, sums, self.preempted))
        if len(self.points) > self._max_points:
            del self.points[1:-1:2]
            self._width = max(2 * self._width, self.now // self._max_points)
        self.next_point_at = self.now + self._width

    def add_up(self) -> None:
        """Update the sums to the current time."""
        durations, spans = self._durations, self._all_durations
        if not spans:
            return
        for index, values in enumerate(zip(*self._levels, strict=True)):
            self.sums[index] += sum(map(mul, values, durations))
            self._update_extremes(index, max(values), min(values))
        if self._intervals:
            _, _, sums, highs, lows, _ = zip(*self._intervals, strict=True)
            columns = (zip(*each, strict=True) for each in (sums, highs, lows))
            for index, (totals, upper, lower) in enumerate(zip(*columns, strict=True)):
                self.sums[index] += sum(totals)
                self._update_extremes(index, max(upper), min(lower))
        self.running.add(self._running, spans)
        self.waiting.add(self._waiting, spans)
        pending = (self._intervals, self._levels, durations, self._running, self._waiting, spans)
        for each in pending:
            each.clear()

    def _update_extremes(self, index: int, high: int, low: int) -> None:
        before = self.lows[index]
        self.peaks[index] = max(self.peaks[index], high)
        self.lows[index] = low if before is None else min(before, low)

    def _record(self, levels: Sequence[int], running: int, waiting: int, duration: int) -> None:
        self._levels.append(levels)
        self._durations.append(duration)
        self._pass(running, waiting, duration)

    def _pass(self, running: int, waiting: int, duration: int) -> None:
        """Advance the time; sum up where a batch is complete or a point is due."""
        self.now += duration
        self._running.append(running)
        self._waiting.append(waiting)
        self._all_durations.append(duration)
        if self.now >= self.next_point_at:
            self.add_point()
        elif len(self._all_durations) >= _BATCH:
            self.add_up()
