"""All figures of an ordinary run or an experiment, by id.

paged/wasted_slots                         arm / metric
capacity/requests=8/paged/preemptions      experiment / cell / arm / metric
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from experiment.analysis.experiment_results import ExperimentResult
from experiment.analysis.metrics import ARM_METRICS, Metric
from experiment.analysis.results import ArmResult, Results
from experiment.compare.results import Figure
from experiment.experiments.figures import FIGURES
from experiment.text.errors import unknown, user_error
from experiment.text.messages import Message, message

# Counts determined by settings and lengths alone, independent of arrival times.
SETTLED = frozenset((
    "block_bytes", "block_size", "blocks", "budget_bytes", "fits", "fits_plain", "kv_bytes",
    "pool_bytes", "problems", "requests", "slot_bytes",
))  # fmt: skip
_PARTS, _CELL_PARTS = 2, 4


def parse_id(figure_id: str) -> tuple[str, str, Metric]:
    """Return the arm of an id, and the name and properties of its metric.

    Raises:
        UserError: invalid id, or unknown metric.
    """
    parts = figure_id.split("/")
    if len(parts) not in (_PARTS, _CELL_PARTS) or not all(parts):
        raise user_error("error.compare.id", id=figure_id)
    *place, arm, name = parts
    known = {each: figure.about for each, figure in FIGURES.items()} if place else ARM_METRICS
    if name not in known:
        raise unknown("metric", name, sorted(known))
    return arm, name, known[name]


def figures_of(results: Results, *, timed: bool = False) -> dict[str, Figure]:
    """Figures of a run, or of the cells of an experiment, by id.

    ``timed``: requests arrive by the wall clock, so batches and most counts are not reproducible.
    Experiments exclude such counts themselves.
    """
    if results.experiment is not None:
        figures = _of_experiment(results.experiment)
    else:
        figures = (f for arm in results.arms for f in _of_arm(results, arm, timed))
    return {figure.id: figure for figure in figures}


def place_of(name: str, values: Mapping[str, object]) -> str:
    """Prefix of the figure ids of an experiment's cell."""
    return f"{name}/" + ",".join(f"{key}={value}" for key, value in values.items())


def _of_arm(results: Results, arm: ArmResult, timed: bool) -> Iterator[Figure]:
    for metric in ARM_METRICS.values():
        value = metric.read(results, arm) if arm.status == "finished" else None
        chance = timed and metric.kind == "count" and metric.name not in SETTLED
        if chance and value is not None:
            value, why = None, message("compare.reason.wall")
        else:
            why = _why(arm)
        yield Figure(
            id=f"{arm.arm}/{metric.name}", arm=arm.arm, metric=metric.name, unit=metric.unit,
            kind=metric.kind, better=metric.better, value=value,
            reason=why if value is None else None,
        )  # fmt: skip


def _why(arm: ArmResult) -> Message:
    if arm.status == "finished":
        return message("compare.reason.not_had")
    return arm.reason or message(f"report.unknown.{arm.status}")


def _of_experiment(result: ExperimentResult) -> Iterator[Figure]:
    for cell in result.cells:
        place = place_of(result.name, cell.values)
        for arm in cell.arms:
            for info in result.figures:
                known = arm.figures.get(info.figure)
                value = known.value if known and arm.status == "finished" else None
                reason = (known.reason if known else None) or arm.reason
                yield Figure(
                    id=f"{place}/{arm.arm}/{info.figure}", arm=arm.arm, metric=info.figure,
                    unit=info.unit, kind=info.kind, better=info.better, cell=cell.values,
                    value=value, values=known.values if known else [],
                    reason=(reason or message("compare.reason.not_had")) if value is None else None,
                    busy=info.kind == "time" and arm.others_cores is not None,
                )  # fmt: skip
