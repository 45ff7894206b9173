"""Labels in findings: arms, figures, cells and their values."""

from __future__ import annotations

from collections.abc import Iterable

from experiment.analysis.experiment_results import CellResult
from experiment.analysis.finding_text import joined, param
from experiment.experiments.figures import FIGURES
from experiment.text.messages import Message, arm_message, message

# Shapes of the experiment ``lengths`` that the catalogues name.
SHAPES = ("short", "mixed", "long")
# Not translated.
_NAMED = ("int8", "fp8")
_SHORT = ("slabs", "paged", "contiguous.batch", "contiguous.sequential", "contiguous.growing")


def axis_label(name: str) -> Message:
    """Name of an axis."""
    return message(f"experiments.axis.{name}")


def value_label(axis: str, value: int | float | str) -> Message | str:
    """Label of an axis value: a number, a term, or the user's name."""
    if isinstance(value, str):
        named = value not in _NAMED and (axis != "shape" or value in SHAPES)
        return message(f"experiments.value.{value.replace('-', '_')}") if named else value
    return f"{value:,g}" if isinstance(value, float) else f"{value:,}"


def arm_label(arm: str) -> Message:
    """Short name of an arm next to its value."""
    if arm in _SHORT:
        return message(f"experiments.side.{arm.replace('.', '_')}")
    return arm_message(arm)


def saturation_title(arm: str) -> Message:
    """Title of an arm's finding about saturation."""
    return message("experiments.found.saturation", arm=arm_label(arm).model_dump())


def same_in(arm: str) -> Message:
    """Title of a finding that repeats the previous one for another arm."""
    return message("experiments.found.other", arm=arm_label(arm).model_dump())


def labelled(name: Message | str) -> Message:
    """A name before its value, outside of a sentence."""
    return message("experiments.found.label", name=param(name))


def side_label(axis: str, value: int | float | str) -> Message:
    """Label of a cell's value before a value that was measured there."""
    return message("experiments.found.to", name=param(value_label(axis, value)))


def arm_in_cell(arm: str, cell: CellResult) -> Message:
    """Name of an arm in a cell."""
    place = cell_place(cell, cell.values)
    at = place.model_dump() if place else ""
    return message("experiments.found.at", figure=arm_label(arm).model_dump(), at=at)


def cell_place(cell: CellResult, axes: Iterable[str]) -> Message | None:
    """The cell of a comparison: each axis with its value."""
    return joined(
        "experiments.and",
        (
            message(
                "experiments.found.where",
                axis=axis_label(axis).model_dump(),
                value=param(value_label(axis, cell.values[axis])),
            )
            for axis in axes
        ),
    )


def arm_figure(arm: str, figure: str) -> Message:
    """Name of an arm's figure."""
    of = {"one": figure_label(figure).model_dump(), "other": arm_label(arm).model_dump()}
    return message("experiments.pair", **of)


def rate_label(rate: float) -> Message:
    """Label of an arrival rate in requests per second."""
    axis = axis_label("rate").model_dump()
    return message("experiments.found.where", axis=axis, value=f"{rate:g}")


def figure_label(name: str) -> Message:
    """Name of a figure."""
    return FIGURES[name].about.label
