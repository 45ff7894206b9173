"""What is known of an experiment that did not run to its end."""

from __future__ import annotations

from typing import Literal

from experiment.analysis.experiment_results import (
    CellArm,
    CellResult,
    ExperimentResult,
    FigureInfo,
    FigureValue,
)
from experiment.analysis.results import Results
from experiment.compare.figures import figures_of
from experiment.text.messages import Message, message


def arm(status: Literal["finished", "failed"], reason: Message | None) -> CellArm:
    figures = {"steps": FigureValue(value=7, values=[7, 7])}
    return CellArm(arm=status, status=status, reason=reason, repeats=2, figures=figures)


def test_of_an_arm_of_a_cell_that_did_not_end_no_figure_is_known() -> None:
    """Its whole repeats are in the table of its own run, where it is said that it failed."""
    why = message("failure.no_end")
    arms = [arm("finished", None), arm("failed", why)]
    cell = CellResult.model_construct(values={"requests": 2}, arms=arms)
    info = FigureInfo(figure="steps", unit="count", kind="count", better="less")
    found = ExperimentResult.model_construct(name="capacity", cells=[cell], figures=[info])
    figures = figures_of(Results.model_construct(experiment=found, arms=[]))
    place = "capacity/requests=2"
    assert figures[f"{place}/finished/steps"].value == 7
    assert figures[f"{place}/failed/steps"].value is None
    assert figures[f"{place}/failed/steps"].reason == why
