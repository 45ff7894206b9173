"""Comparison of two runs as one self-contained page in both languages, and as CSV."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from experiment.compare.results import Comparison, Figure, Row, Side
from experiment.report import Reports
from experiment.report.facts.bilingual import Bilingual
from experiment.report.facts.compare import (
    change_text,
    counted,
    moment,
    place_words,
    title,
    verdict,
)
from experiment.report.facts.csv_text import csv_text
from experiment.report.facts.texts import Words
from experiment.report.facts.values import setting, whole, written
from experiment.report.html.embed import packed, safe_json
from experiment.report.page.page import column_heads, page_assets, templates
from experiment.text.messages import Message, message

PAGE, DATA, TABLE = "compare.html", "compare.json", "compare.csv"
_COLUMNS = (
    "id", "arm", "metric", "unit", "kind", "better", "left", "left_low", "left_high", "right",
    "right_low", "right_high", "difference", "change", "improvement", "verdict", "reason",
)  # fmt: skip


_NOT_HERE = "compare.reason.not_here"
_HEADS = ("left", "right", "change", "verdict_column")


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows of an arm, in a cell of an experiment.

    ``same`` are rows without change, ``apart`` incomparable ones, including those of an arm or cell
    of only one run.
    """

    number: int
    place: Words
    arm: str
    rows: list[Row]
    same: list[Row]
    apart: list[Row]


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
    b = Bilingual(lang)
    env = templates(b)
    env.globals.update(
        title=title,
        change=change_text,
        verdict=verdict,
        span=_span,
        moment=moment,
        value=lambda figure, unit: written(figure.value, unit),
        setting=lambda value: setting(whole(value) if isinstance(value, float) else value),
    )
    context: dict[str, Any] = {
        "lang": lang,
        **page_assets(
            stacked=column_heads(
                b,
                side=[message(f"compare.{name}") for name in _HEADS],
                pair=[message("compare.left"), message("compare.right")],
            )
        ),
        "patterns": "",
        "began": moment(comparison.right),
        "data": safe_json(
            {
                "name": DATA,
                **comparison.model_dump(mode="json"),
                "tables": {TABLE: packed(table)},
            }
        ),
        "sides": [("left", comparison.left), ("right", comparison.right)],
        "comparison": comparison,
        "groups": _groups(comparison.rows),
        "places": {row.id: place for place, row in enumerate(comparison.rows)},
        "headline": counted(comparison),
        "reasons": _reasons(comparison.rows),
        "sections": ["differences", "figures", "reading", "about"],
        "kinds": _sides_kind(comparison.left),
    }
    page: str = env.get_template("compare.html.j2").render(context)
    return page


def compare_csv(comparison: Comparison) -> str:
    """A row for each figure; empty if unknown."""
    return csv_text(_COLUMNS, map(_cells, comparison.rows))


def _groups(rows: Sequence[Row]) -> list[_Group]:
    by_arm: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        by_arm.setdefault((row.figure.place, row.figure.arm), []).append(row)
    groups = [
        _Group(
            number, place_words(mine[0].figure), arm,
            *([row for row in mine if _kept(row) == each] for each in ("open", "same", "apart")),
        )
        for number, ((_, arm), mine) in enumerate(by_arm.items())
    ]  # fmt: skip
    # Groups with visible rows first.
    return sorted(groups, key=lambda group: (not group.rows, not group.same))


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


def _reasons(rows: Sequence[Row]) -> list[Message]:
    """Each reason once, with verdict and number of figures."""
    reasons: dict[str, tuple[Row, int]] = {}
    for row in rows:
        if row.reason is not None:
            key = row.verdict + row.reason.model_dump_json()
            reasons[key] = (row, reasons[key][1] + 1 if key in reasons else 1)
    return [
        message(
            "compare.why_told",
            text=message(f"compare.verdict.{row.verdict}").model_dump(),
            n=n,
            reason=row.reason.model_dump() if row.reason else None,
        )
        for row, n in reasons.values()
    ]


def _sides_kind(left: Side) -> Message:
    return message(f"compare.lead_{left.kind}")


def _span(figure: Figure | None) -> str | None:
    """Range of the repeats of a time."""
    if figure is None or figure.span is None or figure.kind == "count":
        return None
    low, high = (written(value, figure.unit) for value in figure.span)
    return f"{low} … {high}"
