"""Claims of the PagedAttention paper as cells of text, and the files beside its page.

Reads the plain data that ``paper.json`` holds, so an old file can be drawn again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from experiment.report.facts.csv_text import csv_text
from experiment.report.facts.keyed import Said
from experiment.report.facts.sourced import Teller, joined, told
from experiment.text import DASH
from experiment.text.messages import Message, message

Data = Mapping[str, Any]
_VERDICTS = ("holds", "fails", "not_judged")
# How figures are written, by their unit.
_KINDS = {
    "bytes": "fixed.0:B", "slots": "fixed.0", "gib": "fixed.2:GiB", "gb": "fixed.1:GB",
    "percent": "fixed.1:%", "requests": "fixed.2", "ratio": "fixed.2",
}  # fmt: skip
_CSV = (
    "id", "source", "item", "subject", "unit", "basis", "paper", "mean", "deviation", "lowest",
    "highest", "tolerance", "tolerance_value", "verdict", "fitted", "assumed", "seeds",
)  # fmt: skip


def counted(data: Data) -> Message:
    """How many claims came out how; of a check that was interrupted, that these are not all."""
    found = [claim["verdict"] for claim in data["claims"]]
    counts = {verdict: found.count(verdict) for verdict in _VERDICTS}
    parts = data.get("interrupted")
    if parts:
        return message("paper.count_so_far", done=parts["done"], of=parts["of"], **counts)
    return message("paper.count", **counts)


def paper_document(data: Data) -> dict[str, Any]:
    """What key paths of the page begin in: paper.json, and the sentence that is made of it."""
    return {**data, "headline": counted(data).model_dump()}


def claim_cells(k: Teller, claim: Data) -> list[str]:
    """A claim: what it is, the paper's figure, ours, the tolerance, the verdict."""
    return [
        _title(k, claim), _paper(k, claim), _ours(k, claim), _tolerance(k, claim),
        k.t(f"paper.verdict_{claim['verdict']}"),
    ]  # fmt: skip


def place_in_paper(k: Teller, claim: Data) -> str:
    """The figure, table or section that a claim is from, as its language calls it."""
    source = source_words(claim["source"])
    return told(k.t, Said(source, f"{_at(claim)}.source", "paper.source"))


def source_words(source: str) -> str | Message:
    """``Fig. 2`` and ``Table 1`` as messages; the sign of a section is the same everywhere."""
    for begins, kind in (("Fig. ", "figure"), ("Table ", "table")):
        if source.startswith(begins):
            return message(f"paper.source_{kind}", place=source.removeprefix(begins))
    return source


def fitted_lines(k: Teller, data: Data) -> list[str]:
    """What was chosen because the paper does not print it."""
    return [
        k.said(f"paper.fitted_{each['item']}", value=f"#general fitted.{place}.value")
        for place, each in enumerate(data["fitted"])
    ]


def _title(k: Teller, claim: Data) -> str:
    title = k.said(f"paper.item_{claim['item']}", subject=f"{_at(claim)}.subject")
    mark = " (1)" if claim["fitted"] else " (2)" if claim["assumed"] else ""
    return joined(title, mark)


def _paper(k: Teller, claim: Data) -> str:
    if claim["paper"] is None:
        return k.t("paper.in_words") if claim["basis"] == "said" else DASH
    return k.number(f"{_at(claim)}.paper", _KINDS[claim["unit"]])


def _ours(k: Teller, claim: Data) -> str:
    at, kind = f"{_at(claim)}.ours", _KINDS[claim["unit"]]
    if claim["tolerance"]["kind"] == "covers":
        return joined(k.number(f"{at}.lowest", kind), " … ", k.number(f"{at}.highest", kind))
    if claim["ours"]["deviation"] is None:
        return k.number(f"{at}.mean", kind)
    plain, _, _ = kind.partition(":")
    return joined(k.number(f"{at}.mean", plain), " ± ", k.number(f"{at}.deviation", kind))


def _tolerance(k: Teller, claim: Data) -> str:
    kind, at = claim["tolerance"]["kind"], f"{_at(claim)}.tolerance.value"
    # Points are those of shares.
    written = {"absolute": "#fixed.1 ", "covers": "#fixed.1 "}
    written |= dict.fromkeys(("at_least", "at_most"), f"#{_KINDS[claim['unit']]} ")
    return k.said(f"paper.tolerance_{kind}", value=f"{written.get(kind, '')}{at}")


def _at(claim: Data) -> str:
    return f"claims[{claim['id']}]"


def paper_json(data: Data) -> str:
    """The text of ``paper.json``: the same for the same seeds."""
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def paper_csv(data: Data) -> str:
    """The text of ``paper.csv``: one line for each claim; unknown is empty."""
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
