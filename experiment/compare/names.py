"""Parse ids of figures.

paged/wasted_slots                         arm / metric
capacity/requests=8/paged/preemptions      experiment / cell / arm / metric
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from experiment.analysis.experiment_results import Better, Kind, Unit
from experiment.analysis.metrics import ARM_METRICS
from experiment.experiments.figures import FIGURES
from experiment.text.errors import unknown, user_error

_PARTS, _CELL_PARTS = 2, 4


@dataclass(frozen=True, slots=True)
class FigureId:
    """Parts of an id, and properties of its metric."""

    place: str
    arm: str
    metric: str
    unit: Unit
    kind: Kind
    better: Better | None


def parse_id(figure_id: str) -> FigureId:
    """Parse an id.

    Raises:
        UserError: invalid id, or unknown metric.
    """
    parts = figure_id.split("/")
    if len(parts) not in (_PARTS, _CELL_PARTS) or not all(parts):
        raise user_error("error.compare.id", id=figure_id)
    *place, arm, metric = parts
    known: Collection[str] = FIGURES if place else ARM_METRICS
    if metric not in known:
        raise unknown("metric", metric, sorted(known))
    about = FIGURES[metric].about if place else ARM_METRICS[metric]
    return FigureId("/".join(place), arm, metric, about.unit, about.kind, about.better)
