"""The parts of an experiment in its page: findings, charts, and the table of all figures."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from experiment.analysis.experiment_results import (
    CellResult,
    ExperimentResult,
    FigureInfo,
)
from experiment.analysis.finding_text import answer, param
from experiment.experiments.findings import note
from experiment.experiments.registry import figure_name
from experiment.report.facts import experiment as words
from experiment.report.facts.arm_series import arm_series
from experiment.report.facts.bilingual import Bilingual
from experiment.report.facts.texts import KeyedText, PageText, keyed_notes
from experiment.report.html.lines import LineChart, figure, line_chart, line_swatch
from experiment.text import Translator
from experiment.text.messages import Message, arm_message, message


def experiment_text(t: Translator, result: ExperimentResult, began: str) -> PageText:
    """Question and answer; findings; a table per figure. ``began``: date and time of the run."""
    exact, predicted = result.exact_counts
    gaps = [*words.left_out(result), *words.gaps(result)]
    counts = t("experiments.foretold", exact=exact, of=predicted)
    headline = words.headline(t, result)
    first = [t.message(answer(one)) for one in result.findings[:1]]
    return PageText(
        kicker=t.message(note(result.name, "question")),
        when=began,
        headline=headline,
        lines=[KeyedText(text, "results.headline") for text in first if text != headline],
        alarms=keyed_notes(t, result.problems, "results.experiment.problems"),
        notes=keyed_notes(t, result.notes, "results.experiment.notes"),
        facts=[
            t.message(note(result.name, "about")),
            *map(t.message, words.varied([cell.values for cell in result.cells])),
            *map(t.message, words.ended(result)),
            t("experiments.table_note"),
            *([counts] if predicted else []),
        ],
        tables=[words.finding_cells(t, result), *words.figure_tables(t, result)],
        lists={t("experiments.gaps"): [*map(t.message, gaps)]} if gaps else {},
    )


def experiment_charts(b: Bilingual, result: ExperimentResult) -> dict[str, Markup]:
    """Charts by the names of their tables; the first one is above the findings."""
    infos = {info.figure: info for info, _ in words.groups(result)}
    drawn = [name for name in result.charts if name in infos]
    names = ["findings", *map(words.chart_name, drawn[1:])]
    return {
        name: _drawn(b, result, infos[chart]) for name, chart in zip(names, drawn, strict=False)
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


def _drawn(b: Bilingual, result: ExperimentResult, info: FigureInfo) -> Markup:
    chart, lines = _chart(result, info), _lines(result, info)
    legend = [
        (
            line_swatch(chart.series[at], at == chart.top),
            words.arena_name(one.arena) if one.arena else arm_message(one.arm),
        )
        for at, one in enumerate(lines)
        if any(value is not None for value in chart.lines[at])
    ]
    has_spread = any(span and span[0] < span[1] for spans in chart.spans for span in spans)
    spread = [message("experiments.chart_note")] if info.kind == "time" and has_spread else []
    return figure(b, chart.title, line_chart(b, chart), legend, spread)


def _chart(result: ExperimentResult, info: FigureInfo) -> LineChart:
    """A chart with a point per cell in which any arm has the figure.

    Axes with the same value in all of these cells are omitted: a wall-clock time is drawn over the
    rates, without the cells on the clock of steps.
    """
    shown = next(of for one, of in words.groups(result) if one == info)
    cells = [result.cells[place] for place in shown]
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
    several = sum(any(value is not None for value in line) for line in lines) > 1
    return LineChart(
        name=words.chart_name(info.figure),
        table=f"{words.chart_name(info.figure)}-data",
        title=title,
        about=about,
        axis=axis,
        points=[words.cell_label(each) for each in values],
        lines=lines,
        unit=info.unit,
        spans=spans,
        joined=joined,
        # The paged arm's line often hides another.
        top=result.arms.index("paged") if joined and several and "paged" in result.arms else None,
        series=[numbers[line.arena or line.arm] for line in drawn],
    )


def _varying_values(cells: list[CellResult]) -> list[words.Values]:
    """Values of the cells, without axes that are the same in all of them."""
    names = list(cells[0].values)
    vary = [name for name in names if len({cell.values[name] for cell in cells}) > 1]
    kept = vary or names[:1]
    return [{name: cell.values[name] for name in kept} for cell in cells]
