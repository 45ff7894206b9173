"""The columns of a simulation: a policy with its result, and why a figure of it is missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from experiment.report.facts.simulation_figures import Figure, Result, Value
from experiment.text.messages import Message, message


@dataclass(frozen=True, slots=True)
class Cell:
    """A policy's column: its result, or why there is none."""

    policy: str
    result: Result | None
    error: Message | None

    def value(self, figure: Figure) -> Value:
        """The figure; None where there is none."""
        return None if self.result is None else figure.value(self.result)

    def reason(self, figure: Figure) -> Message:
        """Why the figure is missing."""
        if self.result is None:
            return self.error or message("sim.reason.nothing_ran")
        return message(f"sim.reason.{figure.reason(self.result)}")


def cells_of(data: Mapping[str, Any]) -> list[Cell]:
    """The columns of a record."""
    return [
        Cell(
            cell["policy"],
            cell["result"],
            Message.model_validate(cell["error"]) if cell["error"] else None,
        )
        for cell in data["cells"]
    ]


def spoken(figures: tuple[Figure, ...], cells: list[Cell]) -> list[Figure]:
    """Figures that some policy has; of states, those that some slot was ever in."""
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
    """Figures that some policies do not have, for one reason."""

    policies: tuple[str, ...]
    figures: tuple[Figure, ...]
    reason: Message


def dashes(figures: tuple[Figure, ...], cells: list[Cell]) -> list[Dash]:
    """Why figures are missing; states that no slot was ever in are not asked for."""
    shown = spoken(figures, cells)
    asked = [figure for figure in figures if figure in shown or figure.state is None]
    groups: dict[tuple[str, tuple[Figure, ...]], tuple[Message, list[str]]] = {}
    for cell in cells:
        without: dict[str, tuple[Message, list[Figure]]] = {}
        for figure in asked:
            if cell.value(figure) is None:
                why = cell.reason(figure)
                without.setdefault(why.key, (why, []))[1].append(figure)
        for key, (why, found) in without.items():
            groups.setdefault((key, tuple(found)), (why, []))[1].append(cell.policy)
    return [Dash(tuple(policies), found, why) for (_, found), (why, policies) in groups.items()]
