"""A sweep as a page, and what it is made of: a CSV of all cells, and the same as JSON.

cells ─► summary.csv      every cell, every measure
      ─► summary.json     what the page shows: the first cells, and how many there are
      ─► sweep.html       the settings that differ, and what came of them
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from experiment import __version__
from experiment.i18n import DASH, Translator, format_bytes
from experiment.messages import Message, message
from experiment.report.bench_tables import Cells
from experiment.report.embed import packed
from experiment.report.sourced import Teller
from experiment.report.tables_page import Told, tables_html

TABLE, FILE, PAGE = "summary.csv", "summary.json", "sweep.html"
# A grid may have a million cells: the page shows the first, the table has all.
MOST_CELLS = 400
_MOST_TABLE = 400_000  # of the packed table
_BYTES = "budget_bytes"
_MEASURES = {
    "live": ("live_percent", "fixed.1:%"),
    "running": ("running_busy_mean", "fixed.2"),
    "preemptions": ("preemptions", "fixed.0"),
    "latency": ("latency_p50_s", "fixed.2:s"),
    "rate": ("requests_per_s", "fixed.2"),
}

Row = Mapping[str, Any]


def sweep_data(rows: Sequence[Row]) -> dict[str, Any]:
    """What summary.json holds: how many cells there are, and the first of them."""
    return {
        "version": __version__,
        "count": len(rows),
        "refused": sum(row["error"] is not None for row in rows),
        "varied": varied(rows),
        "cells": [dict(row) for row in rows[:MOST_CELLS]],
    }


def sweep_csv(rows: Sequence[Row]) -> str:
    """One line for each cell in the order of the grid; unknown is empty."""
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def varied(rows: Sequence[Row]) -> list[str]:
    """Axes of which the cells have more than one value."""
    from kvsim.sweep import AXES

    return [name for name in AXES if len({row[name] for row in rows}) > 1]


def subject(data: Mapping[str, Any]) -> str:
    """Model and GPU, where all cells share them."""
    known = [name for name in ("model", "gpu") if name not in data["varied"]]
    return " · ".join(str(data["cells"][0][name]) for name in known)


def counted(data: Mapping[str, Any]) -> Message:
    """How many cells there are, and how many of them could not be simulated."""
    return message("sweep.done", cells=int(data["count"]), refused=int(data["refused"]))


def sweep_html(data: Mapping[str, Any], table: str, lang: str) -> str:
    """The page of what ``summary.json`` holds; ``table`` is offered for download with it."""
    made = packed(table)
    tables = {TABLE: made} if len(made) <= _MOST_TABLE else {}
    return tables_html(lambda t: _told(t, data), lang, FILE, data, tables)


def sweep_document(data: Mapping[str, Any]) -> dict[str, Any]:
    """What key paths of the page begin in: summary.json, and the sentences made of it."""
    return {
        **data,
        "headline": counted(data).model_dump(),
        "same": same(data),
        "more": data["count"] - len(data["cells"]),
    }


def same(data: Mapping[str, Any]) -> str:
    """Settings that all cells share, by the names of their axes."""
    from kvsim.sweep import AXES

    first = data["cells"][0]
    shared = [name for name in AXES if name not in data["varied"] and first[name] is not None]
    return ", ".join(f"{_axis(name)} {_setting(name, first[name])}" for name in shared)


def _told(t: Translator, data: Mapping[str, Any]) -> Told:
    k = Teller(t, sweep_document(data))
    axes = data["varied"] or ["policy"]
    more = [k.said("sweep.more", n="more", path=f"'{TABLE}")] if k.value("more") else []
    table = Cells(
        t("sweep.cells"),
        [*map(_axis, axes), *[t(f"sweep.column_{name}") for name in _MEASURES]],
        [_row(k, axes, row) for row in data["cells"]],
        left=tuple(range(len(axes))),
        notes=more,
    )
    return Told(
        kicker=t("sweep.name"),
        headline=k.stored("headline"),
        facts=[k.said("sweep.same", settings="same"), t("sweep.reading")],
        tables=[table],
    )


def _row(k: Teller, axes: Sequence[str], row: Row) -> list[str]:
    at = f"cells[{row['id']}]"
    given = [k.number(f"{at}.{name}", "bytes" if name == _BYTES else "text") for name in axes]
    if row["error"] is not None:
        refused = k.said("sweep.refused", code=f"{at}.error")
        return [*given, refused, *[DASH] * (len(_MEASURES) - 1)]
    return [*given, *[k.number(f"{at}.{name}", kind) for name, kind in _MEASURES.values()]]


def _axis(name: str) -> str:
    """An axis as a person writes it."""
    return "kv_budget" if name == _BYTES else name


def _setting(name: str, value: Any) -> str:
    return format_bytes(value) if name == _BYTES else str(value)
