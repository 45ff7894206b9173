"""Ids of figures: what stands in them, and which metric they name.

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
class Named:
    """What an id says, and what is known of its metric."""

    place: str
    arm: str
    metric: str
    unit: Unit
    kind: Kind
    better: Better | None


def named(figure_id: str) -> Named:
    """Take an id apart.

    Raises:
        UserError: it has not the shape of one, or there is no such metric.
    """
    parts = figure_id.split("/")
    if len(parts) not in (_PARTS, _CELL_PARTS) or not all(parts):
        raise user_error("error.compare.id", id=figure_id)
    *place, arm, metric = parts
    known: Collection[str] = FIGURES if place else ARM_METRICS
    if metric not in known:
        raise unknown("metric", metric, sorted(known))
    found = FIGURES[metric].about if place else ARM_METRICS[metric]
    return Named("/".join(place), arm, metric, found.unit, found.kind, found.better)
