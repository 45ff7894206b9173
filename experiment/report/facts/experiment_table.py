"""An experiment as a flat table: a row per figure, arm and cell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from experiment.analysis.experiment_results import CellArm, CellResult, ExperimentResult, FigureInfo

if TYPE_CHECKING:
    import pandas as pd


def experiment_frame(result: ExperimentResult) -> pd.DataFrame:
    """Build the table; values in the unit of their figure, empty if unknown."""
    import pandas as pd  # late, as in experiment.report.facts.tables

    return pd.DataFrame(
        [
            _row(result, cell, arm, info)
            for cell in result.cells
            for arm in cell.arms
            for info in result.figures
        ]
    )


def _row(
    result: ExperimentResult, cell: CellResult, arm: CellArm, info: FigureInfo
) -> dict[str, Any]:
    value = arm.figures.get(info.figure)
    why = value.reason if value else arm.reason
    return {
        "experiment": result.name,
        "size": result.size,
        "cell": cell.index + 1,
        **{f"cell_{name}": one for name, one in cell.values.items()},
        "arm": arm.arm,
        "status": arm.status,
        "figure": info.figure,
        "unit": info.unit,
        "kind": info.kind,
        "value": value.value if value else None,
        "low": value.low if value else None,
        "high": value.high if value else None,
        "repeats": arm.repeats,
        "foretold_by_kvsim": value.foretold if value else None,
        "as_foretold": value.exact if value else None,
        "unknown_because": why.key if why and (value is None or value.value is None) else None,
    }
