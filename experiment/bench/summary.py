"""Rows of all rounds → one line for each workload and arm: medians, smallest and largest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from experiment.bench.rows import Row
from experiment.bench.targets import OURS, RATE, ratios


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, smallest and largest of some rounds; None where no round has the figure."""

    median: float | None
    lowest: float | None
    highest: float | None
    count: int


@dataclass(frozen=True, slots=True)
class Line:
    """An arm in a workload over all rounds; ``factor`` is the paged arm's rate over this one's."""

    workload: str
    arm: str
    rows: list[Row]
    factor: Spread

    @property
    def finished(self) -> list[Row]:
        """Rounds that it finished."""
        return [row for row in self.rows if row.status == "finished"]

    def spread(self, figure: str) -> Spread:
        """A figure over the rounds."""
        return spread(getattr(row, figure) for row in self.finished)


def spread(values: Iterable[float | None]) -> Spread:
    """Median, smallest and largest of what is known."""
    known = [value for value in values if value is not None]
    if not known:
        return Spread(None, None, None, 0)
    return Spread(median(known), min(known), max(known), len(known))


def lines(rows: Sequence[Row]) -> list[Line]:
    """Each workload's arms in the order in which they first came."""
    grouped: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        grouped.setdefault((row.workload, row.arm), []).append(row)
    found = []
    for (workload, arm), some in grouped.items():
        factor = [] if arm == OURS else ratios(rows, workload, arm, RATE)
        found.append(Line(workload, arm, some, spread(factor)))
    return found
