"""The section of an experiment in the page: findings, charts, and the table of all figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from markupsafe import Markup

from experiment.analysis.experiment_results import (
    CellArm,
    CellResult,
    ExperimentResult,
    FigureInfo,
    Number,
)
from experiment.analysis.finding_text import answer, below, param
from experiment.experiments.findings import note
from experiment.experiments.registry import figure_name
from experiment.report.facts import experiment as words
from experiment.report.facts.arm_series import arm_series
from experiment.report.facts.bilingual import Bilingual
from experiment.report.html.lines import LineChart, line_chart
from experiment.text.messages import Message, message


@dataclass(frozen=True, slots=True)
class Drawn:
    """A chart over the cells.

    ``lines``: number of each that it has, whether it lies on others, and its name; ``repeats``:
    whether it shows their spread.
    """

    title: Message
    picture: Markup
    lines: list[tuple[int, bool, Markup]]
    repeats: bool


def experiment_context(b: Bilingual, result: ExperimentResult | None) -> dict[str, Any]:
    """What the template needs; nothing for an ordinary run."""
    if result is None:
        return {"experiment": None}
    groups = words.groups(result)
    infos = {group.info.figure: group.info for group in groups}
    exact, foretold = result.foretold
    return {
        "experiment": result,
        "experiment_about": note(result.name, "about"),
        "experiment_varied": words.varied([cell.values for cell in result.cells]),
        "experiment_titles": [words.finding_title(result.name, one) for one in result.findings],
        "experiment_texts": [(answer(one), below(one)) for one in result.findings],
        "experiment_anchors": words.anchors(result.findings),
        "experiment_axis": words.cell_axis(result.cells[0].values) if result.cells else None,
        "experiment_groups": groups,
        "experiment_charts": [
            _drawn(b, result, infos[name]) for name in result.charts if name in infos
        ],
        "experiment_gaps": [*words.ended(result), *words.left_out(result), *words.gaps(result)],
        "experiment_exact": exact,
        "experiment_foretold": foretold,
        "experiment_focus": focus_message(result),
        "figure_label": partial(figure_name, result.name),
    }


def focus_message(result: ExperimentResult) -> Message | None:
    """Which cell the other sections look at."""
    if not result.cells:
        return None
    cell = result.cells[min(result.focus, len(result.cells) - 1)]
    return message(
        "experiments.focus",
        n=cell.index + 1,
        of=result.cells_planned,
        name=words.cell_name(cell.values).model_dump(),
        value=param(words.cell_label(cell.values)),
    )


@dataclass(frozen=True, slots=True)
class _Line:
    """What a chart has at a place: a figure of an arm; None: nothing there.

    ``arena``: it is of an arena that was tried beside the arm.
    """

    arm: str
    figure: str | None
    arena: str | None = None


def _lines(result: ExperimentResult, info: FigureInfo) -> list[_Line]:
    """Every arm has the same place in all charts, behind them every arena.

    A figure of the paged arm has beside it what the arenas have of the same.
    """
    own, known = words.arena_of(info.figure), [each.figure for each in result.figures]
    lines = [_Line(arm, None if own else info.figure) for arm in result.arms]
    for arena in words.ARENAS:
        same = info.figure if own == arena else f"{arena}_{info.figure}"
        if any(words.arena_of(name) == arena for name in known):
            lines.append(_Line("paged", same if same in known else None, arena))
    return lines


def _drawn(b: Bilingual, result: ExperimentResult, info: FigureInfo) -> Drawn:
    chart, lines = _chart(result, info), _lines(result, info)
    names = [
        (
            chart.series[at],
            at == chart.top,
            b.message(words.arena_name(one.arena)) if one.arena else b.arm(one.arm),
        )
        for at, one in enumerate(lines)
        if any(value is not None for value in chart.lines[at])
    ]
    return Drawn(chart.title, line_chart(b, chart), names, info.kind == "time")


def _chart(result: ExperimentResult, info: FigureInfo) -> LineChart:
    """A point for each cell in which any arm has the figure.

    What all of these cells have in common is left out of their names: a time by the wall clock is
    drawn over the rates, without the cells that were run on a clock of steps.
    """
    cells = [cell for cell in result.cells if any(_has(arm, info) for arm in cell.arms)]
    values = _told_apart(cells)
    title, axis = figure_name(result.name, info.figure), words.cell_axis(values[0])
    about = message("experiments.chart_desc", figure=title.model_dump(), axis=axis.model_dump())
    joined = not any(isinstance(one, str) for each in values for one in each.values())
    lines, spans = [], []
    drawn, numbers = _lines(result, info), arm_series([*result.arms, *words.ARENAS])
    for line in drawn:
        found = [cell.arm(line.arm) for cell in cells]
        figures = [one.figures.get(line.figure or "") if one else None for one in found]
        lines.append([each.value if each else None for each in figures])
        spans.append(
            [
                (float(v.low), float(v.high))
                if v and v.low is not None and v.high is not None
                else None
                for v in figures
            ]
        )
    return LineChart(
        name=f"experiment-{info.figure.replace('_', '-')}",
        table=f"figure-{info.figure}",
        title=title,
        about=about,
        axis=axis,
        points=[words.cell_label(each) for each in values],
        lines=lines,
        unit=info.unit,
        spans=spans,
        joined=joined,
        top=_on_top(result, lines) if joined else None,
        series=[numbers[line.arena or line.arm] for line in drawn],
    )


def _on_top(result: ExperimentResult, lines: Sequence[Sequence[Number | None]]) -> int | None:
    """The paged arm's line, which often lies on another; None where there is no other."""
    drawn = sum(any(value is not None for value in line) for line in lines)
    return result.arms.index("paged") if "paged" in result.arms and drawn > 1 else None


def _has(arm: CellArm, info: FigureInfo) -> bool:
    value = arm.figures.get(info.figure)
    return value is not None and value.value is not None


def _told_apart(cells: list[CellResult]) -> list[words.Values]:
    """What the cells are called by, without what is the same in all of them."""
    names = list(cells[0].values)
    vary = [name for name in names if len({cell.values[name] for cell in cells}) > 1]
    kept = vary or names[:1]
    return [{name: cell.values[name] for name in kept} for cell in cells]
