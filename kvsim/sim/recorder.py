"""Time integrals of a simulation: exact sums, extremes, and a time series of bounded size.

    value   ▁▁▃▃▃▃▇▇▇▇▅▅        every step adds  value x duration  to an integer sum
    series  |     |     |       the sums are saved at some points; an interval is the difference of
                                two of them, so merging intervals is lossless

Sums are integers (slots or requests x attoseconds), so they do not depend on the order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from kvsim.latency.clock import DecodeRun
from kvsim.sim.fast.decode_only import StepInterval

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

    def add(self, count: int, duration: int) -> None:
        """Add a count with its duration."""
        self.most = max(self.most, count)
        self.total += count * duration
        low = max(0, count.bit_length() - _EXACT_BITS)
        self.times[count >> low << low] += duration

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

    def idle(self, until: int, levels: Sequence[int]) -> None:
        """Record idle time until ``until``."""
        self._record(_step(levels, until - self.now), 0, 0)

    def step(self, levels: Sequence[int], running: int, waiting: int, duration: int) -> None:
        """Record one step; ``levels`` hold for its duration.

        A plan without chunks takes no time and is not counted as a step.
        """
        self.add_interval(_step(levels, duration), running, waiting)

    def run(
        self,
        levels: Sequence[int],
        slopes: Sequence[int],
        running: int,
        waiting: int,
        line: DecodeRun,
    ) -> None:
        """Record steps between which level ``i`` grows by ``slopes[i]``."""
        slopes = [*slopes, *[0] * (len(levels) - len(slopes))]
        last = [a + slope * (line.steps - 1) for a, slope in zip(levels, slopes, strict=True)]
        duration, moment = line.duration, line.moment
        sums = [a * duration + slope * moment for a, slope in zip(levels, slopes, strict=True)]
        highs, lows = list(map(max, levels, last)), list(map(min, levels, last))
        self.add_interval(StepInterval(line.steps, duration, sums, highs, lows), running, waiting)

    def add_interval(self, interval: StepInterval, running: int, waiting: int) -> None:
        """Record steps whose integrals are known."""
        self.steps += interval.steps
        self.busy += interval.duration
        self._record(interval, running, waiting)

    def add_point(self) -> None:
        """Add a point to the series; if there are too many, remove every second one."""
        sums = (*self.sums, self.running.total, self.waiting.total)
        self.points.append(SeriesPoint(self.now, sums, self.preempted))
        if len(self.points) > self._max_points:
            del self.points[1:-1:2]
            self._width = max(2 * self._width, self.now // self._max_points)
        self.next_point_at = self.now + self._width

    def _record(self, interval: StepInterval, running: int, waiting: int) -> None:
        """Integrate and advance the time; add a point where one is due."""
        _, duration, sums, highs, lows = interval
        for index, (total, high, low) in enumerate(zip(sums, highs, lows, strict=True)):
            self.sums[index] += total
            if high > self.peaks[index]:
                self.peaks[index] = high
            before = self.lows[index]
            if before is None or low < before:
                self.lows[index] = low
        self.running.add(running, duration)
        self.waiting.add(waiting, duration)
        self.now += duration
        if self.now >= self.next_point_at:
            self.add_point()


def _step(levels: Sequence[int], duration: int) -> StepInterval:
    return StepInterval(
        int(duration > 0), duration, [level * duration for level in levels], levels, levels
    )
