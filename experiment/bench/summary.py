"""Rows of all rounds → one line for each workload and arm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from experiment.bench.rows import Row
from experiment.bench.targets import OURS, RATE, ratios
from experiment.config.arm_order import by_ladder


@dataclass(frozen=True, slots=True)
class Line:
    """An arm in a workload over all rounds.

    ``factors`` are the paged arm's rate over this one's, of each round that has both.
    """

    workload: str
    arm: str
    rows: list[Row]
    factors: list[float]

    @property
    def finished(self) -> list[Row]:
        """Rounds that it finished."""
        return [row for row in self.rows if row.status == "finished"]


def lines(rows: Sequence[Row]) -> list[Line]:
    """Each workload's arms by the ladder; workloads in the order in which they first came."""
    grouped: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        grouped.setdefault((row.workload, row.arm), []).append(row)
    workloads = list(dict.fromkeys(row.workload for row in rows))
    by_arm = by_ladder(grouped.items(), lambda one: one[0][1])
    return [
        Line(workload, arm, some, [] if arm == OURS else ratios(rows, workload, arm, RATE))
        for (workload, arm), some in sorted(by_arm, key=lambda one: workloads.index(one[0][0]))
    ]
