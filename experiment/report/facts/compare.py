"""Names and values of a comparison as messages, for console and page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import reduce
from typing import get_args

from experiment.analysis.experiment_results import Number, Unit
from experiment.analysis.finding_text import param
from experiment.analysis.metrics import METRICS
from experiment.compare.gate import GateResult, tally
from experiment.compare.results import Comparison, Difference, Figure, Row, Side, Verdict
from experiment.experiments.registry import figure_name
from experiment.report.facts.experiment import cell_label, cell_name
from experiment.report.facts.texts import Cells, PageText, Words, arm_name, date_text, said
from experiment.report.facts.values import setting, whole, written
from experiment.text import DASH, Translator
from experiment.text.messages import Message, message

_GATE_COLUMNS = ("figure", "limit", "allowed", "value", "verdict")
_GATE_STYLES = {"passed": "shown", "failed": "missed", "unknown": "not_shown"}


def title(figure: Figure) -> Message:
    """Name of a figure."""
    if figure.place:
        return figure_name(figure.place.partition("/")[0], figure.metric)
    return METRICS[figure.metric].label


def place_words(figure: Figure) -> Words:
    """Cell of a figure."""
    if not figure.cell:
        return figure.place
    value = param(cell_label(figure.cell))
    return message("compare.place", axis=cell_name(figure.cell).model_dump(), value=value)


def verdict(row: Row) -> Message:
    """A row's verdict, with the improvement if a direction is better."""
    if row.verdict in ("better", "worse") and row.improvement is not None:
        return message(f"compare.verdict.{row.verdict}_by", share=abs(row.improvement))
    return message(f"compare.verdict.{row.verdict}")


def where(t: Translator, figure: Figure) -> str:
    """Cell and arm of a figure."""
    arm = arm_name(t, figure.arm)
    return f"{said(t, place_words(figure))} · {arm}" if figure.place else arm


def row_cells(t: Translator, row: Row) -> list[str]:
    """Both values, the change and the verdict."""
    left, right = (_value(figure, row.figure.unit) for figure in (row.left, row.right))
    return [left, right, change_text(row), t.message(verdict(row))]


def _value(figure: Figure | None, unit: Unit) -> str:
    """A value, with the range of a time's repeats below."""
    if figure is None:
        return DASH
    text = written(figure.value, unit)
    if figure.span is None or figure.kind == "count":
        return text
    low, high = (written(value, unit) for value in figure.span)
    return f"{text}\n{low} … {high}"


def difference_cells(t: Translator, one: Difference) -> list[str]:
    """Name of a setting, and its value on both sides."""
    values = (whole(v) if isinstance(v, float) else v for v in (one.left, one.right))
    return [f"{t(f'compare.group.{one.group}')} {one.name}", *map(setting, values)]


def side_text(t: Translator, side: Side) -> str:
    """Name, date and version of a side."""
    key = f"compare.side_{side.kind}"
    return t(key, name=side.name, when=moment(side), version=side.version)


def why(t: Translator, rows: Sequence[Row]) -> list[str]:
    """Reasons of verdicts with their numbers of figures, the most common first."""
    counts = Counter(
        t(
            "compare.gate.because", verdict=t(f"compare.verdict.{row.verdict}"),
            reason=t.message(row.reason),
        )
        for row in rows
        if row.reason is not None
    )  # fmt: skip
    return [t("compare.why", text=text, n=n) for text, n in counts.most_common()]


def counted(comparison: Comparison) -> Message:
    """Number of figures by verdict, without verdicts that do not occur."""
    parts = [
        message("compare.part", n=n, verdict=message(f"compare.verdict.{name}").model_dump())
        for name in get_args(Verdict)
        if (n := comparison.count(name))
    ]
    if not parts:
        return message("compare.nothing")
    if comparison.count("same") == len(comparison.rows):
        return message("compare.counted_same", n=len(comparison.rows))
    text = reduce(lambda one, other: message("compare.listed", one=one, other=other), parts)
    return message("compare.counted", n=len(comparison.rows), text=text)


def change_text(row: Row) -> str:
    """Relative change of the value, regardless of the better direction."""
    if row.difference is None:
        return DASH
    if row.difference == 0:
        return "0"
    if row.change is None:
        return f"{row.difference:+,.6g}"
    return f"{row.change * 100:+,.1f} %"


def moment(side: Side) -> str:
    """Local date and time of a run."""
    return date_text(side.wall_ns, side.utc_offset_s)


def exact(value: Number | None, unit: Unit) -> str:
    """Write a value as in a limit: bytes in full, without relevant rounding."""
    if value is None:
        return DASH
    if float(value).is_integer():
        return f"{int(value):,}"
    # Twelve digits distinguish all values that are not the same.
    return f"{value:,}" if unit in ("bytes", "count") else f"{value:,.12g}"


def gate_text(t: Translator, judged: Sequence[GateResult]) -> PageText:
    """How many limits of a gate hold, and each with its figure and verdict; failed ones first."""
    bad, limits = tally(judged)
    key = "broken" if bad else "held"
    several = sorted(judged, key=lambda one: one.verdict == "passed")
    table = Cells(
        "",
        [t(f"compare.gate.column_{name}") for name in _GATE_COLUMNS],
        [_limit_cells(t, one) for one in several],
        left=(0, 1, 4),
        styles=[_GATE_STYLES[one.verdict] for one in several],
    )
    return PageText(
        t("compare.gate.title"), t(f"compare.gate.{key}", n=bad or limits, of=limits), (), [table]
    )


def _limit_cells(t: Translator, one: GateResult) -> list[str]:
    """Cells of a limit: figure, limit, bound, value, verdict."""
    unit: Unit = one.figure.unit if one.figure else "count"
    verdict = t(f"compare.gate.{one.verdict}")
    if one.reason is not None:
        verdict = t("compare.gate.because", verdict=verdict, reason=t.message(one.reason))
    return [
        one.id,
        t(f"compare.gate.bound_{one.limit.bound}", value=one.limit.text),
        exact(one.allowed, unit),
        exact(one.figure.value if one.figure else None, unit),
        verdict,
    ]
