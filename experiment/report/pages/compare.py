"""Comparison of two runs as one self-contained page in both languages, and as CSV."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

from experiment.compare.results import Comparison, Row
from experiment.report import Reports
from experiment.report.facts.compare import (
    counted,
    difference_cells,
    row_cells,
    side_text,
    title,
    where,
    why,
)
from experiment.report.facts.csv_text import csv_text
from experiment.report.facts.texts import Cells, KeyedText, PageText, capital, keyed_notes
from experiment.report.html.answer import answer_html
from experiment.report.html.embed import packed
from experiment.text import DASH, Translator

PAGE, DATA, TABLE = "compare.html", "compare.json", "compare.csv"
_COLUMNS = (
    "id", "arm", "metric", "unit", "kind", "better", "left", "left_low", "left_high", "right",
    "right_low", "right_high", "difference", "change", "improvement", "verdict", "reason",
)  # fmt: skip


_NOT_HERE = "compare.reason.not_here"
_HEADS = ("figure", "left", "right", "change", "verdict_column")
_URGENCY = {"worse": 0, "better": 1, "differs": 2}
_STYLES = {"worse": "missed", "better": "shown"}
_READING = ("change", "direction", "spread", "counts", "machine")

Numbered = tuple[int, Row]


def compare_reports(comparison: Comparison, lang: str) -> Reports:
    """Page, data and table of a comparison."""
    table = compare_csv(comparison)
    data = json.dumps(comparison.model_dump(mode="json"), ensure_ascii=False, indent=1) + "\n"
    return {
        PAGE: compare_html(comparison, table, lang),
        DATA: data,
        TABLE: table,
    }


def compare_html(comparison: Comparison, table: str, lang: str) -> str:
    """Render the page; ``lang`` is its initial language.

    Args:
        table: text of ``compare.csv``, for downloading.
    """
    data = comparison.model_dump(mode="json")
    return answer_html(
        lambda t: compare_text(t, comparison), lang, DATA, data, {TABLE: packed(table)}
    )


def compare_text(t: Translator, comparison: Comparison) -> PageText:
    """Texts of the page in one language."""
    kept: dict[str, list[Numbered]] = {"open": [], "same": [], "apart": []}
    for one in enumerate(comparison.rows):
        kept[_kept(one[1])].append(one)
    sides = {"left": comparison.left, "right": comparison.right}
    changed = sorted(kept["open"], key=lambda one: _URGENCY.get(one[1].verdict, 3))
    same, apart = kept["same"], kept["apart"]
    tables = [_figures(t, t("compare.page.figures"), changed)]
    if comparison.differences:
        tables.append(_differences(t, comparison))
    if same:
        tables.append(_figures(t, t("compare.same_figures", n=len(same)), same))
    if apart:
        tables.append(_figures(t, t("compare.apart_figures", n=len(apart)), apart))
    return PageText(
        kicker=t("compare.title"),
        headline=t.message(counted(comparison)),
        lines=why(t, comparison.rows),
        notes=keyed_notes(t, comparison.notes, "notes"),
        facts=[
            *(f"{t(f'compare.{name}')}: {side_text(t, side)}" for name, side in sides.items()),
            t(f"compare.lead_{comparison.left.kind}"),
            *([] if comparison.differences else [t("compare.no_differences")]),
        ],
        tables=tables,
        lists={t("compare.page.reading"): [t(f"compare.reading.{name}") for name in _READING]},
    )


def _figures(t: Translator, title: str, rows: Sequence[Numbered]) -> Cells:
    return Cells(
        title,
        [capital(t(f"compare.{name}")) for name in _HEADS],
        [_row(t, place, row) for place, row in rows],
        left=(0, 4),
        styles=[_STYLES.get(row.verdict, "") for _, row in rows],
    )


def _row(t: Translator, place: int, row: Row) -> list[str]:
    left, right, *others = row_cells(t, row)
    figures = (("left", left, row.left), ("right", right, row.right))
    values = [
        text if figure is None or figure.value is None
        else KeyedText(text, f"rows.{place}.{side}.value")
        for side, text, figure in figures
    ]  # fmt: skip
    return [f"{t.message(title(row.figure))}\n{where(t, row.figure)}", *values, *others]


def _differences(t: Translator, comparison: Comparison) -> Cells:
    rows = []
    for place, one in enumerate(comparison.differences):
        label, *values = difference_cells(t, one)
        sides = zip(("left", "right"), values, strict=True)
        keyed = (KeyedText(text, f"differences.{place}.{side}") for side, text in sides)
        rows.append([label, *(DASH if text == DASH else text for text in keyed)])
    heads = [capital(t(f"compare.{name}")) for name in ("difference", "left", "right")]
    return Cells(t("compare.page.differences"), heads, rows, left=(0, 1, 2))


def compare_csv(comparison: Comparison) -> str:
    """A row for each figure; empty if unknown."""
    return csv_text(_COLUMNS, map(_cells, comparison.rows))


def _cells(row: Row) -> list[Any]:
    data = row.figure.model_dump(include={"arm", "metric", "unit", "kind", "better"})
    data |= row.model_dump(include={"id", "difference", "change", "improvement", "verdict"})
    data["reason"] = row.reason.key if row.reason else None
    for name, figure in (("left", row.left), ("right", row.right)):
        low, high = (figure.span if figure else None) or (None, None)
        data |= {name: figure.value if figure else None, f"{name}_low": low,
                 f"{name}_high": high}  # fmt: skip
    return [data[name] for name in _COLUMNS]


def _kept(row: Row) -> Literal["open", "same", "apart"]:
    """Whether a row is visible, or in which folded list."""
    if row.verdict == "same":
        return "same"
    absent = row.reason is not None and row.reason.key == _NOT_HERE
    return "apart" if absent or row.verdict == "not_comparable" else "open"
