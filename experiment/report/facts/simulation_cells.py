"""Columns of a simulation: policies with results, and reasons for missing figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from experiment.report.facts.simulation_figures import Result, SimulationFigure, Value
from experiment.text.messages import Message, message


@dataclass(frozen=True, slots=True)
class PolicyCell:
    """A policy's column: its result, or an error."""

    policy: str
    result: Result | None
    error: Message | None

    def value(self, figure: SimulationFigure) -> Value:
        """Value of a figure; None if missing."""
        return None if self.result is None else figure.value(self.result)

    def reason(self, figure: SimulationFigure) -> Message:
        """Reason why a figure is missing."""
        if self.result is None:
            return self.error or message("sim.reason.nothing_ran")
        return message(f"sim.reason.{figure.reason(self.result)}")


def cells_of(data: Mapping[str, Any]) -> list[PolicyCell]:
    """Columns of a record."""
    return [
        PolicyCell(
            cell["policy"],
            cell["result"],
            Message.model_validate(cell["error"]) if cell["error"] else None,
        )
        for cell in data["cells"]
    ]


def visible_figures(
    figures: tuple[SimulationFigure, ...], cells: list[PolicyCell]
) -> list[SimulationFigure]:
    """Figures that some policy has; states only if some slot was in them."""
    return [
        figure
        for figure in figures
        if any(
            value is not None and (value or figure.state is None)
            for value in (cell.value(figure) for cell in cells)
        )
    ]


@dataclass(frozen=True, slots=True)
class Dash:
    """Figures that some policies lack, for one reason."""

    policies: tuple[str, ...]
    figures: tuple[SimulationFigure, ...]
    reason: Message


def dashes(figures: tuple[SimulationFigure, ...], cells: list[PolicyCell]) -> list[Dash]:
    """Reasons for missing figures, without states that no slot was in."""
    shown = visible_figures(figures, cells)
    asked = [figure for figure in figures if figure in shown or figure.state is None]
    groups: dict[tuple[str, tuple[SimulationFigure, ...]], tuple[Message, list[str]]] = {}
    for cell in cells:
        without: dict[str, tuple[Message, list[SimulationFigure]]] = {}
        for figure in asked:
            if cell.value(figure) is None:
                why = cell.reason(figure)
                without.setdefault(why.key, (why, []))[1].append(figure)
        for key, (why, found) in without.items():
            groups.setdefault((key, tuple(found)), (why, []))[1].append(cell.policy)
    return [Dash(tuple(policies), found, why) for (_, found), (why, policies) in groups.items()]
