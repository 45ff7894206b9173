"""Claims of the PagedAttention paper as cells of text and CSV, from the data of ``paper.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiment.report.facts.csv_text import csv_text
from experiment.report.facts.texts import Cells, KeyedText
from experiment.report.facts.values import fixed
from experiment.text import DASH, Translator
from experiment.text.messages import Message, message

Data = Mapping[str, Any]
_STYLES = {"holds": "shown", "fails": "missed", "not_judged": ""}
_COLUMNS = ("claim", "paper", "ours", "tolerance", "verdict")
_VERDICTS = ("holds", "fails", "not_judged")
# Format of figures by unit: decimals and suffix.
_FORMS = {
    "bytes": (0, " B"), "slots": (0, ""), "gib": (2, " GiB"), "gb": (1, " GB"),
    "percent": (1, " %"), "requests": (2, ""), "ratio": (2, ""),
}  # fmt: skip
_CSV = (
    "id", "source", "item", "subject", "unit", "basis", "paper", "mean", "deviation", "lowest",
    "highest", "tolerance", "tolerance_value", "verdict", "fitted", "assumed", "seeds",
)  # fmt: skip


def counted(data: Data) -> Message:
    """Number of claims by verdict, and whether the check was interrupted."""
    verdicts = [claim["verdict"] for claim in data["claims"]]
    counts = {verdict: verdicts.count(verdict) for verdict in _VERDICTS}
    parts = data.get("interrupted")
    if parts:
        return message("paper.count_so_far", done=parts["done"], of=parts["of"], **counts)
    return message("paper.count", **counts)


def claim_cells(t: Translator, claim: Data) -> list[str]:
    """Cells of a claim: title, the paper's figure, ours, tolerance, verdict."""
    return [
        _title(t, claim), _paper(t, claim), _ours(claim), _tolerance(t, claim),
        t(f"paper.verdict_{claim['verdict']}"),
    ]  # fmt: skip


def paper_cells(t: Translator, data: Data) -> Cells:
    """All claims below the figures, tables and sections of the paper."""
    rows, styles, source = list[list[str]](), list[str](), None
    for claim in data["claims"]:
        if claim["source"] != source:
            source = claim["source"]
            rows.append([place_in_paper(t, claim)])
            styles.append("bold")
        rows.append(claim_cells(t, claim))
        styles.append(_STYLES[claim["verdict"]])
    heads = [t(f"paper.column_{name}") for name in _COLUMNS]
    return Cells(t("paper.each"), heads, rows, left=(0, 4), styles=styles)


def place_in_paper(t: Translator, claim: Data) -> str:
    """Figure, table or section of a claim's source."""
    source: str = claim["source"]
    for begins, kind in (("Fig. ", "figure"), ("Table ", "table")):
        if source.startswith(begins):
            return t(f"paper.source_{kind}", place=source.removeprefix(begins))
    return source  # the section sign needs no translation


def fitted_lines(t: Translator, data: Data) -> list[str]:
    """Parameters that were fitted because the paper does not state them."""
    return [t(f"paper.fitted_{each['item']}", value=f"{each['value']:.6g}")
            for each in data["fitted"]]  # fmt: skip


def _title(t: Translator, claim: Data) -> str:
    mark = " (1)" if claim["fitted"] else " (2)" if claim["assumed"] else ""
    return t(f"paper.item_{claim['item']}", subject=claim["subject"]) + mark


def _paper(t: Translator, claim: Data) -> str:
    if claim["paper"] is None:
        return t("paper.in_words") if claim["basis"] == "said" else DASH
    return KeyedText(_written(claim, claim["paper"]), f"claims[{claim['id']}].paper")


def _ours(claim: Data) -> str:
    ours = claim["ours"]
    if claim["tolerance"]["kind"] == "covers":
        return f"{_written(claim, ours['lowest'])} … {_written(claim, ours['highest'])}"
    if ours["deviation"] is None:
        return KeyedText(_written(claim, ours["mean"]), f"claims[{claim['id']}].ours.mean")
    digits, _ = _FORMS[claim["unit"]]
    return f"{fixed(ours['mean'], digits)} ± {_written(claim, ours['deviation'])}"


def _tolerance(t: Translator, claim: Data) -> str:
    kind, value = claim["tolerance"]["kind"], claim["tolerance"]["value"]
    if kind == "none":
        return DASH
    if kind in ("at_least", "at_most"):
        return f"{'≥' if kind == 'at_least' else '≤'} {_written(claim, value)}"
    if kind in ("absolute", "covers"):  # in percentage points
        value = fixed(value, 1)
    return t(f"paper.tolerance_{kind}", value=value)


def _written(claim: Data, value: float) -> str:
    return fixed(value, *_FORMS[claim["unit"]]) or DASH


def paper_csv(data: Data) -> str:
    """Text of ``paper.csv``: a row per claim; empty if unknown."""
    return csv_text(_CSV, map(_cells, data["claims"]))


def _cells(claim: Data) -> list[Any]:
    ours, tolerance = claim["ours"], claim["tolerance"]
    row = {
        **claim,
        **ours,
        "tolerance": tolerance["kind"],
        "tolerance_value": tolerance["value"],
        "seeds": " ".join(map(str, claim["seeds"])),
    }
    return [row.get(name) for name in _CSV]
