"""Charts of a sweep's page, from the lines of :mod:`experiment.report.pages.sweep_lines`.

A chart per measure, with a common axis, above the table of its points.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from experiment.analysis.experiment_results import Unit
from experiment.analysis.finding_text import listed
from experiment.report.facts.bilingual import Bilingual
from experiment.report.facts.data_key import Keyed, KeyedText
from experiment.report.facts.page_text import Cells, capital
from experiment.report.facts.simulation_figures import rounding_note
from experiment.report.facts.values import fixed
from experiment.report.html.figure import figure
from experiment.report.html.lines import LineChart, line_chart, line_swatch
from experiment.text import DASH, Translator, format_bytes
from experiment.text.messages import Message, message

_BYTES = "budget_bytes"
_SEED = "seed"  # a name rather than a number
_UNITS: Mapping[str, tuple[Unit, float]] = {
    "live": ("share", 0.01), "running": ("mean", 1), "latency": ("seconds", 1), "rate": ("rate", 1),
}  # fmt: skip

Data = Mapping[str, Any]


def axis_name(name: str) -> Message:
    """Label of an axis."""
    return message(f"sweep.axis.{name}")


def setting(name: str, value: Any) -> str:
    """Format a value of an axis; a dash if the cell has none."""
    if value is None:
        return DASH
    if isinstance(value, float):
        return f"{value:.6g}"
    if name == _BYTES:
        return format_bytes(value)
    return f"{value:,}" if isinstance(value, int) and name != _SEED else str(value)


def drawn(data: Data) -> list[str]:
    """Measures with a chart: those that any line has."""
    lines = data["lines"]["lines"] if data.get("lines") else ()
    return [name for name in _UNITS if any(any(line["values"][name]) for line in lines)]


def sweep_charts(b: Bilingual, data: Data) -> dict[str, Markup]:
    """Charts of ``lines`` in summary.json, by measure."""
    return {name: _figure(b, data, name) for name in drawn(data)}


def _figure(b: Bilingual, data: Data, name: str) -> Markup:
    found = data["lines"]
    axis = axis_name(found["across"])
    notes = [rounding_note(dict.fromkeys(cell["policy"] for cell in data["cells"]))]
    if found["over"]:
        over = listed(map(axis_name, found["over"]))
        notes.append(message("sweep.over", axes=over))
    if any(cell[found["across"]] is None for cell in data["cells"]):
        notes.append(message("sweep.flat"))
    unit, scale = _UNITS[name]
    lines = [line["values"][name] for line in found["lines"]]
    chart = LineChart(
        name=f"sweep-{name}",
        table=f"{name}-data",
        title=message(f"sweep.column_{name}"),
        about=message("sweep.chart", axis=axis.model_dump()),
        axis=axis,
        points=[Keyed(label, f"lines.points.{n}") for n, label in enumerate(_points(found))],
        lines=[[one["median"] * scale if one else None for one in line] for line in lines],
        unit=unit,
        spans=[[_span(one, scale) for one in line] for line in lines],
        joined=found["numbers"],
    )
    labels = [(line_swatch(n), label) for n, label in enumerate(_labels(found))]
    return figure(b, chart.title, line_chart(b, chart), labels, filter(None, notes))


def _points(found: Data) -> list[str]:
    return [setting(found["across"], value) for value in found["points"]]


def _labels(found: Data) -> list[str]:
    """Labels of lines: their settings."""
    return [
        " · ".join(setting(name, value) for name, value in line["settings"].items())
        for line in found["lines"]
    ]


def _span(one: Mapping[str, float] | None, scale: float) -> tuple[float, float] | None:
    if one is None or one["low"] == one["high"]:
        return None
    return one["low"] * scale, one["high"] * scale


def point_cells(t: Translator, data: Data, name: str, form: tuple[int, str]) -> Cells:
    """A row per point: median of each line, with the range of its cells.

    ``form``: decimals and suffix of the measure.
    """
    found = data["lines"]
    values = [(n, line["values"][name]) for n, line in enumerate(found["lines"])]
    rows = [
        [label, *(_point(t, line[n], f"{place}.values.{name}.{n}", form) for place, line in values)]
        for n, label in enumerate(_points(found))
    ]
    axis, measure = t.message(axis_name(found["across"])), t(f"sweep.column_{name}")
    title = t("sweep.by", measure=measure, axis=axis)
    return Cells(title, [capital(axis), *_labels(found)], rows, name=name)


def _point(t: Translator, one: Mapping[str, float] | None, key: str, form: tuple[int, str]) -> str:
    if one is None:
        return DASH
    low, middle, high = (fixed(one[end], *form) or DASH for end in ("low", "median", "high"))
    below = "" if one["low"] == one["high"] else "\n" + t("experiments.span", low=low, high=high)
    return KeyedText(middle + below, f"lines.lines.{key}.median")
