"""Page, CSV and JSON of a sweep.

cells ─► summary.csv      all cells and measures
      ─► summary.json     data of the page: the first cells, their number, and the lines
      ─► sweep.html       charts of all cells; varied settings and results
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from experiment import __version__
from experiment.report import Reports
from experiment.report.facts.bench_tables import Cells
from experiment.report.facts.csv_text import csv_text
from experiment.report.facts.data_key import KeyedText
from experiment.report.facts.values import fixed
from experiment.report.html.embed import packed
from experiment.report.pages.sweep_chart import axis_name, setting, sweep_charts
from experiment.report.pages.sweep_lines import sweep_lines
from experiment.report.pages.tables import PageText, tables_html
from experiment.simulate.names import policy_message
from experiment.text import DASH, Translator
from experiment.text.messages import Message, message
from experiment.workload.kvsim_errors import cell_message

TABLE, FILE, PAGE = "summary.csv", "summary.json", "sweep.html"
# Maximum cells of the page; the table has all.
MAX_CELLS = 400
# Visible cells below the charts; the rest is folded.
_OPEN_ROWS = 24
_MAX_TABLE = 400_000  # of the packed table
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
    return {
        "version": __version__,
        "count": len(rows),
        "refused": sum(row["error"] is not None for row in rows),
        "varied": varied(rows),
        "lines": sweep_lines(rows, varied(rows)),
        "cells": [_cell(row) for row in rows[:MAX_CELLS]],
    }


def _cell(row: Row) -> dict[str, Any]:
    """Data of a cell, with the reason if it cannot be simulated."""
    why = None if row["error"] is None else refusal(row).model_dump()
    return {**{name: value for name, value in row.items() if name != _PARAMS}, "why": why}


def refusal(row: Row) -> Message:
    """Reason why a cell cannot be simulated."""
    return message("sweep.refused", why=_why(row).model_dump())


def _why(row: Row) -> Message:
    return cell_message(row["error"], row[_PARAMS] or {}, row)


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


def sweep_html(data: Mapping[str, Any], table: str, lang: str) -> str:
    """Render the page from the data of ``summary.json``; ``table`` is for downloading."""
    made = packed(table)
    tables = {TABLE: made} if len(made) <= _MAX_TABLE else {}
    forms = {name: (digits, unit) for name, (_, digits, unit) in MEASURES.items()}
    return tables_html(
        lambda t: _page_text(t, data),
        lang,
        FILE,
        data,
        tables,
        lambda b: sweep_charts(b, data, forms),
    )


def same(data: Mapping[str, Any]) -> Message:
    """Settings common to all cells."""
    from kvsim.sweep import AXES

    first = data["cells"][0]
    shared = [name for name in AXES if name not in data["varied"] and first[name] is not None]
    if not shared:
        return message("sweep.nothing_same")
    text = _shared(shared[0], first)
    for name in shared[1:]:
        one, other = text.model_dump(), _shared(name, first).model_dump()
        text = message("compare.listed", one=one, other=other)
    return message("sweep.same", settings=text.model_dump())


def _shared(name: str, cell: Row) -> Message:
    return message(
        "sweep.setting", axis=axis_name(name).model_dump(), value=setting(name, cell[name])
    )


def _page_text(t: Translator, data: Mapping[str, Any]) -> PageText:
    axes = data["varied"] or ["policy"]
    cells, more = data["cells"], data["count"] - len(data["cells"])
    table = Cells(
        t("sweep.cells"),
        [_head(t.message(axis_name(name))) for name in axes]
        + [t(f"sweep.column_{name}") for name in MEASURES],
        [_row(t, axes, row) for row in cells],
        left=tuple(range(len(axes))),
        notes=[t("sweep.more", n=more, path=TABLE)] if more else [],
        open_rows=_OPEN_ROWS,
        more=t("sweep.folded", n=len(cells) - _OPEN_ROWS),
        printed=t("sweep.more", n=data["count"] - _OPEN_ROWS, path=TABLE),
    )
    policies = dict.fromkeys(row["policy"] for row in data["cells"])
    return PageText(
        kicker=t("sweep.name"),
        headline=t.message(counted(data)),
        facts=[t.message(same(data)), t("sweep.reading")],
        tables=[table],
        lists={
            t("sweep.policies"): [
                t("sweep.policy", name=name, text=t.message(policy_message(name)))
                for name in policies
            ]
        },
    )


def _head(text: str) -> str:
    return text[:1].upper() + text[1:]


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
