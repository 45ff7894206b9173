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

    ``lines``: (number, whether it hides others, name) of each; ``repeats``: whether it shows the
    spread of repeats.
    """

    title: Message
    picture: Markup
    lines: list[tuple[int, bool, Markup]]
    repeats: bool


def experiment_context(b: Bilingual, result: ExperimentResult | None) -> dict[str, Any]:
    """Variables of the template; without content for an ordinary run."""
    if result is None:
        return {"experiment": None}
    groups = words.groups(result)
    infos = {group.info.figure: group.info for group in groups}
    exact, predicted = result.exact_counts
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
        "experiment_predicted": predicted,
        "experiment_focus": focus_message(result),
        "figure_label": partial(figure_name, result.name),
    }


def focus_message(result: ExperimentResult) -> Message | None:
    """The cell that the other sections show."""
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
    """A line of a chart: a figure of an arm, or None.

    ``arena``: the figure is an arena's.
    """

    arm: str
    figure: str | None
    arena: str | None = None


def _lines(result: ExperimentResult, info: FigureInfo) -> list[_Line]:
    """Lines of a chart: arms in the same order in all charts, then arenas.

    The paged arm's figures are shown with those of the arenas.
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
    """A chart with a point per cell in which any arm has the figure.

    Axes with the same value in all of these cells are omitted: a wall-clock time is drawn over the
    rates, without the cells on the clock of steps.
    """
    cells = [cell for cell in result.cells if any(_has(arm, info) for arm in cell.arms)]
    values = _varying_values(cells)
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
    """Index of the paged arm's line, which often hides another; None if there is no other."""
    drawn = sum(any(value is not None for value in line) for line in lines)
    return result.arms.index("paged") if "paged" in result.arms and drawn > 1 else None


def _has(arm: CellArm, info: FigureInfo) -> bool:
    value = arm.figures.get(info.figure)
    return value is not None and value.value is not None


def _varying_values(cells: list[CellResult]) -> list[words.Values]:
    """Values of the cells, without axes that are the same in all of them."""
    names = list(cells[0].values)
    vary = [name for name in names if len({cell.values[name] for cell in cells}) > 1]
    kept = vary or names[:1]
    return [{name: cell.values[name] for name in kept} for cell in cells]
