"""The section of an experiment in the page: findings, charts, and the table of all figures."""

from __future__ import annotations

from typing import Any

from experiment.experiments.results import ExperimentResult, FigureInfo
from experiment.messages import Message, message
from experiment.report.bilingual import Bilingual
from experiment.report.experiment import words
from experiment.report.lines import LineChart, line_chart


def experiment_context(b: Bilingual, result: ExperimentResult | None) -> dict[str, Any]:
    """What the template needs; nothing for an ordinary run."""
    if result is None:
        return {"experiment": None}
    infos = {info.figure: info for info in result.figures}
    exact, foretold = result.foretold
    return {
        "experiment": result,
        "experiment_title": words.title(result.name),
        "experiment_about": words.about(result.name),
        "experiment_reading": words.reading(result.name),
        "experiment_table": words.table(result.name),
        "experiment_axis": words.cell_axis(result.cells[0].values) if result.cells else None,
        "experiment_groups": words.groups(result),
        "experiment_charts": [
            (words.figure_label(name), line_chart(b, _chart(result, infos[name])))
            for name in result.charts
            if result.cells
        ],
        "experiment_ended_badly": words.ended_badly(result),
        "experiment_missing": words.missing(result),
        "experiment_unforetold": words.unforetold(result),
        "experiment_exact": exact,
        "experiment_foretold": foretold,
        "experiment_counts": foretold_message(result),
        "experiment_focus": focus_message(result),
        "figure_label": words.figure_label,
    }


def foretold_message(result: ExperimentResult) -> Message:
    """How many counts are what kvsim foretold."""
    exact, foretold = result.foretold
    return message("experiments.foretold", exact=exact, of=foretold)


def focus_message(result: ExperimentResult) -> Message | None:
    """Which cell the other sections look at."""
    about = _focus(result)
    return None if about is None else message("experiments.focus", **about)


def _focus(result: ExperimentResult) -> dict[str, Any] | None:
    if not result.cells:
        return None
    cell = result.cells[min(result.focus, len(result.cells) - 1)]
    label = words.cell_label(cell.values)
    value = label.model_dump() if isinstance(label, Message) else label
    return {
        "n": cell.index + 1,
        "of": result.cells_planned,
        "name": words.cell_axis(cell.values).model_dump(),
        "value": value,
    }


def _chart(result: ExperimentResult, info: FigureInfo) -> LineChart:
    lines, spans = [], []
    for arm in result.arms:
        found = [cell.arm(arm) for cell in result.cells]
        values = [one.figures.get(info.figure) if one else None for one in found]
        lines.append([value.value if value else None for value in values])
        spans.append(
            [
                (float(v.low), float(v.high))
                if v and v.low is not None and v.high is not None
                else None
                for v in values
            ]
        )
    return LineChart(
        name=f"experiment-{info.figure.replace('_', '-')}",
        title=words.figure_label(info.figure),
        about=words.about(result.name),
        axis=words.cell_axis(result.cells[0].values),
        points=[words.cell_label(cell.values) for cell in result.cells],
        lines=lines,
        unit=info.unit,
        spans=spans,
        point_pixels=max(58, 110 * (len(result.cells[0].values) - 1)),
    )
