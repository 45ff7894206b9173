"""The charts of a sweep's page: what :mod:`experiment.report.pages.sweep_lines` worked out, drawn.

live ┌──────┐ running ┌──────┐      a chart a measure, the axis shared by all of them;
     └──────┘         └──────┘      below them one table of all their points
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from experiment.report.facts.bilingual import Bilingual
from experiment.report.facts.keyed import WRITERS, Paths, Said
from experiment.report.facts.simulation_figures import Unit, rounding_note
from experiment.report.html.charts import Width
from experiment.report.html.lines import LineChart, line_chart
from experiment.report.page.page import templates
from experiment.text import DASH
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
    kind = setting_kind(name, value)
    return DASH if value is None else WRITERS[kind](value) or DASH


def setting_kind(name: str, value: Any) -> str:
    """How a value of an axis is written, a key of :data:`experiment.report.facts.keyed.WRITERS`."""
    if isinstance(value, float):
        return "general"
    if name == _BYTES:
        return "bytes"
    return "count" if isinstance(value, int) and name != _SEED else "text"


def sweep_charts(b: Bilingual, data: Mapping[str, Any], kinds: Mapping[str, str]) -> Markup:
    """The section with the charts of ``lines`` in summary.json; nothing where there are none.

    Args:
        kinds: how the values of each measure are written.
    """
    found = data.get("lines")
    drawn = [name for name in _UNITS if found and _known(found, name)]
    if not found or not drawn:
        return Markup("")
    keys = Paths(data)
    env = templates(b)
    text = env.get_template("section_sweep.html.j2").render(
        across=axis_name(found["across"]),
        over=[axis_name(name) for name in found["over"]],
        rounding=rounding_note(dict.fromkeys(cell["policy"] for cell in data["cells"])),
        flat=any(cell[found["across"]] is None for cell in data["cells"]),
        labels=[_label(at, line["settings"]) for at, line in enumerate(found["lines"])],
        charts=[(name, _chart(b, keys, found, name)) for name in drawn],
        tables=[(name, _rows(keys, found, name, kinds[name])) for name in drawn],
    )
    return Markup(text)  # noqa: S704 - made by a template that escapes


def _known(found: Mapping[str, Any], name: str) -> bool:
    return any(one for line in found["lines"] for one in line["values"][name])


def _label(place: int, settings: Mapping[str, Any]) -> Said:
    return Said(label_of(settings), f"lines.lines.{place}.settings", "sweep.settings")


def label_of(settings: Mapping[str, Any]) -> str:
    """What a line is called: its settings."""
    return " · ".join(setting(name, value) for name, value in settings.items())


def _points(keys: Paths, found: Mapping[str, Any]) -> list[Said]:
    """The settings on the axis."""
    kinds = [setting_kind(found["across"], value) for value in found["points"]]
    written = [keys.number(f"lines.points.{at}", kind) for at, kind in enumerate(kinds)]
    return [one for one in written if one is not None]


def _chart(b: Bilingual, keys: Paths, found: Mapping[str, Any], name: str) -> Markup:
    unit, scale = _UNITS[name]
    points = _points(keys, found)
    lines = [line["values"][name] for line in found["lines"]]
    chart = LineChart(
        name=f"sweep-{name}",
        table="lines-data",
        title=message(f"sweep.column_{name}"),
        about=message("sweep.chart", axis=axis_name(found["across"]).model_dump()),
        axis=axis_name(found["across"]),
        points=points,
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


Row = tuple[Said, Sequence[tuple[Said | None, Said | None]]]


def _rows(keys: Paths, found: Mapping[str, Any], name: str, kind: str) -> list[Row]:
    """A row a point: of each line its median, and how far the cells behind it lie apart."""
    rows: list[Row] = []
    for place, label in enumerate(_points(keys, found)):
        cells = []
        for number in range(len(found["lines"])):
            at = f"lines.lines.{number}.values.{name}.{place}"
            one = found["lines"][number]["values"][name][place]
            apart = one is not None and one["low"] != one["high"]
            span = {end: f"#{kind} {at}.{end}" for end in ("low", "high")}
            below = keys.said("experiments.span", **span) if apart else None
            cells.append((keys.number(f"{at}.median", kind), below))
        rows.append((label, cells))
    return rows
