"""The charts of a sweep's page: what :mod:`experiment.report.pages.sweep_lines` worked out, drawn.

live ┌──────┐ running ┌──────┐      a chart a measure, the axis shared by all of them;
     └──────┘         └──────┘      below them one table of all their points
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
# Two of them stand side by side.
_HALF = Width("wide", 450, 74, 68)
_UNITS: Mapping[str, tuple[Unit, float]] = {
    "live": ("share", 0.01), "running": ("mean", 1), "latency": ("seconds", 1), "rate": ("rate", 1),
}  # fmt: skip


def axis_name(name: str) -> Message:
    """What an axis is called."""
    return message(f"sweep.axis.{name}")


def setting(name: str, value: Any) -> str:
    """A value of an axis, as a person writes it; of one that a cell does not have a dash."""
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
    """The section with the charts of ``lines`` in summary.json; nothing where there are none.

    Args:
        forms: of each measure, digits behind the point and what stands behind them.
    """
    found = data.get("lines")
    drawn = [name for name in _UNITS if found and _known(found, name)]
    if not found or not drawn:
        return Markup("")
    env = templates(b)
    text = env.get_template("section_sweep.html.j2").render(
        across=axis_name(found["across"]),
        over=[axis_name(name) for name in found["over"]],
        rounding=rounding_note(dict.fromkeys(cell["policy"] for cell in data["cells"])),
        flat=any(cell[found["across"]] is None for cell in data["cells"]),
        labels=[_label(line["settings"]) for line in found["lines"]],
        charts=[(name, _chart(b, found, name)) for name in drawn],
        tables=[(name, _rows(found, name, forms[name])) for name in drawn],
    )
    return Markup(text)  # noqa: S704 - made by a template that escapes


def _known(found: Mapping[str, Any], name: str) -> bool:
    return any(one for line in found["lines"] for one in line["values"][name])


def _label(settings: Mapping[str, Any]) -> str:
    """What a line is called: its settings."""
    return " · ".join(setting(name, value) for name, value in settings.items())


def _points(found: Mapping[str, Any]) -> list[Keyed]:
    """The settings on the axis."""
    return [
        Keyed(setting(found["across"], value), f"lines.points.{place}")
        for place, value in enumerate(found["points"])
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
    """A row a point: of each line its median, and how far the cells behind it lie apart."""
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
