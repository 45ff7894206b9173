"""Charts of a sweep's page, from the lines of :mod:`experiment.report.pages.sweep_lines`.

live ┌──────┐ running ┌──────┐      a chart per measure, with a common axis;
     └──────┘         └──────┘      below, one table of all points
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from experiment.analysis.experiment_results import Unit
from experiment.report.facts.bilingual import Bilingual
from experiment.report.facts.data_key import Keyed
from experiment.report.facts.simulation_figures import rounding_note
from experiment.report.facts.values import fixed
from experiment.report.html.charts import Width
from experiment.report.html.lines import LineChart, line_chart
from experiment.report.page.page import templates
from experiment.text import DASH, format_bytes
from experiment.text.messages import Message, message

_BYTES = "budget_bytes"
_SEED = "seed"  # a name rather than a number
# Width of a chart: two are next to each other.
_HALF = Width("wide", 450)
_UNITS: Mapping[str, tuple[Unit, float]] = {
    "live": ("share", 0.01), "running": ("mean", 1), "latency": ("seconds", 1), "rate": ("rate", 1),
}  # fmt: skip


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


def sweep_charts(
    b: Bilingual, data: Mapping[str, Any], forms: Mapping[str, tuple[int, str]]
) -> Markup:
    """Section with the charts of ``lines`` in summary.json; empty without lines.

    Args:
        forms: decimals and suffix of each measure.
    """
    lines = data.get("lines")
    drawn = [name for name in _UNITS if lines and _known(lines, name)]
    if not lines or not drawn:
        return Markup("")
    env = templates(b)
    text = env.get_template("section_sweep.html.j2").render(
        across=axis_name(lines["across"]),
        over=[axis_name(name) for name in lines["over"]],
        rounding=rounding_note(dict.fromkeys(cell["policy"] for cell in data["cells"])),
        flat=any(cell[lines["across"]] is None for cell in data["cells"]),
        labels=[_label(line["settings"]) for line in lines["lines"]],
        charts=[(name, _chart(b, lines, name)) for name in drawn],
        tables=[(name, _rows(lines, name, forms[name])) for name in drawn],
    )
    return Markup(text)  # noqa: S704 - made by a template that escapes


def _known(lines: Mapping[str, Any], name: str) -> bool:
    return any(one for line in lines["lines"] for one in line["values"][name])


def _label(settings: Mapping[str, Any]) -> str:
    """Label of a line: its settings."""
    return " · ".join(setting(name, value) for name, value in settings.items())


def _points(lines: Mapping[str, Any]) -> list[Keyed]:
    """Labels of the axis."""
    return [
        Keyed(setting(lines["across"], value), f"lines.points.{place}")
        for place, value in enumerate(lines["points"])
    ]


def _chart(b: Bilingual, found: Mapping[str, Any], name: str) -> Markup:
    unit, scale = _UNITS[name]
    lines = [line["values"][name] for line in found["lines"]]
    chart = LineChart(
        name=f"sweep-{name}",
        table="lines-data",
        title=message(f"sweep.column_{name}"),
        about=message("sweep.chart", axis=axis_name(found["across"]).model_dump()),
        axis=axis_name(found["across"]),
        points=_points(found),
        lines=[[one["median"] * scale if one else None for one in line] for line in lines],
        unit=unit,
        spans=[[_span(one, scale) for one in line] for line in lines],
        joined=found["numbers"],
    )
    return line_chart(b, chart, _HALF)


def _span(one: Mapping[str, float] | None, scale: float) -> tuple[float, float] | None:
    if one is None or one["low"] == one["high"]:
        return None
    return one["low"] * scale, one["high"] * scale


Row = tuple[Keyed, Sequence[tuple[Keyed | None, Message | None]]]


def _rows(found: Mapping[str, Any], name: str, form: tuple[int, str]) -> list[Row]:
    """A row per point: median of each line, with the range of its cells."""
    rows: list[Row] = []
    for place, label in enumerate(_points(found)):
        cells: list[tuple[Keyed | None, Message | None]] = []
        for number, line in enumerate(found["lines"]):
            one = line["values"][name][place]
            if one is None:
                cells.append((None, None))
                continue
            at = f"lines.lines.{number}.values.{name}.{place}.median"
            span = {end: fixed(one[end], *form) for end in ("low", "high")}
            below = message("experiments.span", **span) if one["low"] != one["high"] else None
            cells.append((Keyed(fixed(one["median"], *form) or DASH, at), below))
        rows.append((label, cells))
    return rows
