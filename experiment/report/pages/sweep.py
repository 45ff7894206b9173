"""Page, CSV and JSON of a sweep.

cells ─► summary.csv      all cells and measures
      ─► summary.json     data of the page: the first cells, their number, and the lines
      ─► sweep.html       charts of all cells; varied settings and results
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from experiment import __version__
from experiment.analysis.experiment_results import Unit
from experiment.analysis.finding_text import listed
from experiment.report import Reports
from experiment.report.facts.bilingual import Bilingual
from experiment.report.facts.csv_text import csv_text
from experiment.report.facts.simulation_figures import rounding_note
from experiment.report.facts.texts import Cells, Keyed, KeyedText, PageText, capital
from experiment.report.facts.values import fixed
from experiment.report.html.answer import answer_html
from experiment.report.html.embed import packed_tables
from experiment.report.html.lines import LineChart, figure, line_chart, line_swatch
from experiment.report.pages.sweep_lines import sweep_lines
from experiment.simulate.policies import policy_message
from experiment.text import DASH, Translator, format_bytes
from experiment.text.messages import Message, message
from experiment.workload.kvsim_errors import cell_message

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


TABLE, FILE, PAGE = "summary.csv", "summary.json", "sweep.html"
# Maximum cells of the page; the table has all.
MAX_CELLS = 400
# Column, decimals and suffix of each measure.
MEASURES = {
    "live": ("live_percent", 1, " %"),
    "running": ("running_busy_mean", 2, ""),
    "preemptions": ("preemptions", 0, ""),
    "latency": ("latency_p50_s", 2, " s"),
    "rate": ("requests_per_s", 2, ""),
}

_PARAMS = "error_params"

Row = Mapping[str, Any]


def sweep_reports(rows: Sequence[Row], lang: str) -> Reports:
    """Table, data and page of a sweep."""
    data, table = sweep_data(rows), sweep_csv(rows)
    return {
        TABLE: table,
        FILE: json.dumps(data, ensure_ascii=False, allow_nan=False) + "\n",
        PAGE: sweep_html(data, table, lang),
    }


def sweep_data(rows: Sequence[Row]) -> dict[str, Any]:
    """Data of summary.json: number of cells, the first cells, and lines of all cells."""
    axes = varied(rows)
    return {
        "version": __version__,
        "count": len(rows),
        "refused": sum(row["error"] is not None for row in rows),
        "varied": axes,
        "lines": sweep_lines(rows, axes),
        "cells": [_cell(row) for row in rows[:MAX_CELLS]],
    }


def _cell(row: Row) -> dict[str, Any]:
    """Data of a cell, with the reason if it cannot be simulated."""
    cell = {name: value for name, value in row.items() if name != _PARAMS} | {"why": None}
    if row["error"] is not None:
        why = cell_message(row["error"], row[_PARAMS] or {}, row)
        cell["why"] = message("sweep.refused", why=why.model_dump()).model_dump()
    return cell


def sweep_csv(rows: Sequence[Row]) -> str:
    """A row per cell in the order of the grid; empty if unknown."""
    columns = [name for name in rows[0] if name != _PARAMS]
    return csv_text(columns, ([row.get(name) for name in columns] for row in rows))


def varied(rows: Sequence[Row]) -> list[str]:
    """Axes with more than one value."""
    from kvsim.sweep import AXES

    return [name for name in AXES if len({row[name] for row in rows}) > 1]


def subject(data: Mapping[str, Any]) -> str:
    """Model and GPU, if common to all cells."""
    known = [name for name in ("model", "gpu") if name not in data["varied"]]
    return " · ".join(str(data["cells"][0][name]) for name in known)


def counted(data: Mapping[str, Any]) -> Message:
    """Number of cells, and of those that could not be simulated."""
    cells, refused = int(data["count"]), int(data["refused"])
    if not refused:
        return message("sweep.all_done", cells=cells)
    return message("sweep.done", cells=cells, refused=refused)


def headline(data: Mapping[str, Any]) -> Message:
    """Live share of the best and the worst cell, or how many were simulated."""
    ran = [cell for cell in data["cells"] if cell["live_percent"]]
    if len(ran) < 2 or not data["varied"]:
        return counted(data)
    worst, best = (one(ran, key=lambda cell: cell["live_percent"]) for one in (min, max))
    low, high = (cell["live_percent"] / 100 for cell in (worst, best))
    settings = {"worst": _settings(data["varied"], worst), "best": _settings(data["varied"], best)}
    return message("sweep.headline", low=low, high=high, factor=high / low, **settings)


def sweep_html(data: Mapping[str, Any], table: str, lang: str) -> str:
    """Render the page from the data of ``summary.json``; ``table`` is for downloading."""
    return answer_html(
        lambda t: _page_text(t, data), lang, FILE, data, packed_tables({TABLE: table}),
        lambda b: {name: _figure(b, data, name) for name in drawn(data)},
    )  # fmt: skip


def same(data: Mapping[str, Any]) -> Message:
    """Settings common to all cells."""
    from kvsim.sweep import AXES

    first = data["cells"][0]
    shared = [name for name in AXES if name not in data["varied"] and first[name] is not None]
    if not shared:
        return message("sweep.nothing_same")
    return message("sweep.same", settings=_settings(shared, first))


def _settings(names: Sequence[str], cell: Row) -> object:
    """Axes of a cell with their values, as part of a text."""
    return listed(
        message("sweep.setting", axis=axis_name(name).model_dump(), value=setting(name, cell[name]))
        for name in names
        if cell[name] is not None
    )


def _page_text(t: Translator, data: Mapping[str, Any]) -> PageText:
    forms = {name: (digits, unit) for name, (_, digits, unit) in MEASURES.items()}
    points = [point_cells(t, data, name, forms[name]) for name in drawn(data)]
    policies = dict.fromkeys(row["policy"] for row in data["cells"])
    return PageText(
        kicker=t("sweep.name"),
        headline=t.message(headline(data)),
        lines=[t.message(counted(data))],
        facts=[t.message(same(data)), t("sweep.reading")],
        tables=[*points[:1], sweep_cells(t, data), *points[1:]],
        lists={
            t("sweep.policies"): [
                t("sweep.policy", name=name, text=t.message(policy_message(name)))
                for name in policies
            ]
        },
    )


def sweep_cells(
    t: Translator, data: Mapping[str, Any], most: int = MAX_CELLS, path: str = TABLE
) -> Cells:
    """Settings and measures of the first cells; ``path`` is the table with all."""
    axes = data["varied"] or ["policy"]
    more = data["count"] - len(data["cells"][:most])
    return Cells(
        t("sweep.cells"),
        [capital(t.message(axis_name(name))) for name in axes]
        + [t(f"sweep.column_{name}") for name in MEASURES],
        [_row(t, axes, row) for row in data["cells"][:most]],
        left=tuple(range(len(axes))),
        notes=[t("sweep.more", n=more, path=path)] if more else [],
    )


def _row(t: Translator, axes: Sequence[str], row: Row) -> list[str]:
    def cell(name: str, text: str | None) -> str:
        return DASH if text is None else KeyedText(text, f"cells[{row['id']}].{name}")

    given = [cell(n, None if row[n] is None else setting(n, row[n])) for n in axes]
    if row["error"] is not None:
        return [*given, cell("why", t.message(Message.model_validate(row["why"])))]
    return [
        *given,
        *[cell(n, fixed(row[n], digits, unit)) for n, digits, unit in MEASURES.values()],
    ]
