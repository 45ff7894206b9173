"""Columns of a simulation: policies with results, and reasons for missing figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from experiment.report.facts.data_key import KeyedText
from experiment.report.facts.page_text import Cells
from experiment.report.facts.simulation_figures import (
    GROUPS,
    Result,
    SimulationFigure,
    Value,
    waste_share,
)
from experiment.report.facts.values import written
from experiment.text import Translator
from experiment.text.messages import Message, message
from kvsim.sim.config import CONTIGUOUS

_LEAST_FACTOR = 1.05  # a smaller one is no headline
# Figures printed without ``--details``, and in the open table of a page.
BRIEF = (
    "running_mean", "waste_of_allocated_share", "preemptions", "hits_first_share",
    "first_token_p50_s", "per_output_token_p50_s", "throughput_tokens_per_s",
)  # fmt: skip


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


def figure_cells(
    t: Translator, group: str, figures: tuple[SimulationFigure, ...], cells: list[PolicyCell]
) -> Cells:
    """A row per figure, a column per policy; notes explain the group and its dashes."""
    shown = visible_figures(figures, cells)
    rows = [
        [t.message(figure.about.label), *(_text(cell, figure) for cell in cells)]
        for figure in shown
    ]
    about = f"sim.group.{group}_about"
    notes = [t(about)] if t.has(about) else []
    for dash in dashes(figures, cells):
        names = t("console.listed").join(t.message(each.about.label) for each in dash.figures)
        names = t("sim.all_figures") if len(dash.figures) >= len(shown) else names
        policies, reason = ", ".join(dash.policies), t.message(dash.reason)
        notes.append(t("sim.dash", policy=policies, names=names, reason=reason))
    heads = ["", *(cell.policy for cell in cells)]
    return Cells(t(f"sim.group.{group}"), heads, rows, notes=notes, name=group)


def brief_cells(t: Translator, cells: list[PolicyCell]) -> Cells:
    """A row per policy, with its most important figures."""
    every = {figure.name: figure for group in GROUPS.values() for figure in group}
    shown = visible_figures(tuple(every[name] for name in BRIEF), cells)
    heads = [t("sim.page.policy"), *(t.message(figure.about.label) for figure in shown)]
    rows = [[cell.policy, *(_text(cell, figure) for figure in shown)] for cell in cells]
    return Cells(t("sim.group.brief"), heads, rows, name="brief")


def _text(cell: PolicyCell, figure: SimulationFigure) -> str:
    value = cell.value(figure)
    text = written(value, figure.about.unit)
    if value is None or figure.key is None:
        return text
    return KeyedText(text, f"cells[{cell.policy}].result.{figure.key}")


def headline(data: Mapping[str, Any]) -> Message:
    """Compare the first paged policy with the contiguous baseline (slabs), as far as they ran."""
    ran = [cell for cell in cells_of(data) if cell.result is not None]
    paged = [cell for cell in ran if cell.policy not in CONTIGUOUS]
    others = [cell for cell in ran if cell.policy in CONTIGUOUS]
    others.sort(key=lambda cell: (cell.policy != "slabs", cell.policy != "max"))
    params: dict[str, Any] = {}
    for prefix, cell in zip(("", "other_"), [*paged[:1], *others[:1]], strict=False):
        assert cell.result is not None
        wasted = waste_share(cell.result)
        params[f"{prefix}policy"] = cell.policy
        params[f"{prefix}share"] = None if wasted is None else 1 - wasted
        params[f"{prefix}running"] = cell.result["running"]["mean"]
    if "other_policy" not in params:
        return message(f"sim.headline.{'one' if params else 'none'}", **params)
    running, other = params["running"], params["other_running"]
    if running and other and running >= _LEAST_FACTOR * other:
        return message("sim.headline.more", factor=running / other, **params)
    return message("sim.headline.two", **params)
