"""Claims of the PagedAttention paper: a console table, and the files beside it.

Reads the plain data that ``paper.json`` holds, so an old file can be drawn again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.text import Text

from experiment.report.csv_text import csv_text
from experiment.report.keyed import Said
from experiment.report.parts_console import Advance, PartsConsole
from experiment.report.sourced import Teller, joined, told
from experiment.report.table import Table
from experiment.text import DASH
from experiment.text.messages import Message, message

Data = Mapping[str, Any]
_STYLES = {"holds": "green", "fails": "bold red", "not_judged": "dim"}
# How figures are written, by their unit.
_KINDS = {
    "bytes": "fixed.0:B", "slots": "fixed.0", "gib": "fixed.2:GiB", "gb": "fixed.1:GB",
    "percent": "fixed.1:%", "requests": "fixed.2", "ratio": "fixed.2",
}  # fmt: skip
_CSV = (
    "id", "source", "item", "subject", "unit", "basis", "paper", "mean", "deviation", "lowest",
    "highest", "tolerance", "tolerance_value", "verdict", "fitted", "assumed", "seeds",
)  # fmt: skip


class PaperConsole(PartsConsole):
    """Prints the comparison."""

    @contextmanager
    def progress(self, parts: int) -> Iterator[Advance]:
        """Show how many parts are done while the block runs; nothing without a terminal."""
        if not self.console.is_terminal:
            yield lambda: None
            return
        with self.bar(self.t("paper.running"), parts) as advance:
            yield advance

    def show(self, data: Data) -> None:
        """The table of claims, what was fitted, and what cannot be checked."""
        t, k = self.t, Teller(self.t, paper_document(data))
        seeds = data["seeds"]
        self.console.print(Text(t("paper.title"), style="bold cyan"))
        self.console.print(Text(t("paper.about", n=len(seeds)), style="dim"))
        names = ("claim", "paper", "ours", "tolerance", "verdict")
        table = Table(t, *(t(f"paper.column_{name}") for name in names), right=(1, 2, 3))
        source = None
        for claim in data["claims"]:
            if claim["source"] != source:
                source = claim["source"]
                table.add_row(place_in_paper(k, claim), style="bold")
            *cells, verdict = claim_cells(k, claim)
            table.add_row(*cells, Text(verdict, _STYLES[claim["verdict"]]))
        self.console.print(table)
        self.console.print(Text(t("paper.marks"), style="dim"))
        self._lists(k, data)
        self._count(data)

    def show_files(self, paths: list[Path]) -> None:
        """Where everything was written."""
        for path in paths:
            self.console.print(self.t("paper.written", path=str(path)), soft_wrap=True)

    def _lists(self, k: Teller, data: Data) -> None:
        t = self.t
        self.console.print()
        self.console.print(Text(t("paper.fitted_title"), style="bold cyan"))
        for line in fitted_lines(k, data):
            self.console.print(f"  · {line}")
        self.console.print()
        self.console.print(Text(t("paper.unchecked_title"), style="bold cyan"))
        for key in data["unchecked"]:
            self.console.print(f"  · {t('paper.unchecked_' + key)}")
        self.console.print()

    def _count(self, data: Data) -> None:
        found = counted(data)
        style = "bold yellow" if data.get("interrupted") else "bold green"
        style = "bold red" if found.params["fails"] else style
        self.console.print(Text(self.t.message(found), style=style))


def counted(data: Data) -> Message:
    """How many claims came out how; of a check that was interrupted, that these are not all."""
    found = [claim["verdict"] for claim in data["claims"]]
    counts = {verdict: found.count(verdict) for verdict in _STYLES}
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
