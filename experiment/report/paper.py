"""Claims of the PagedAttention paper: a console table, and the files beside it.

Reads the plain data that ``paper.json`` holds, so an old file can be drawn again.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from experiment.i18n import DASH, Translator
from experiment.messages import Message, message
from experiment.report.parts_console import Advance, PartsConsole

Data = Mapping[str, Any]
_STYLES = {"holds": "green", "fails": "bold red", "not_judged": "dim"}
# Digits behind the point.
_DIGITS = {
    "bytes": 0, "slots": 0, "gib": 2, "gb": 1, "percent": 1, "requests": 2, "ratio": 2,
}  # fmt: skip
_SUFFIX = {"bytes": " B", "gib": " GiB", "gb": " GB", "percent": " %"}
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
        t = self.t
        seeds = data["seeds"]
        self.console.print(Text(t("paper.title"), style="bold cyan"))
        self.console.print(Text(t("paper.about", n=len(seeds)), style="dim"))
        table = Table(box=self.box, pad_edge=False)
        for name in ("claim", "paper", "ours", "tolerance", "verdict"):
            right = name in ("paper", "ours", "tolerance")
            table.add_column(t(f"paper.column_{name}"), justify="right" if right else "left")
        source = None
        for claim in data["claims"]:
            if claim["source"] != source:
                source = claim["source"]
                table.add_row(Text(source, style="bold"))
            *cells, verdict = claim_cells(t, claim)
            table.add_row(*map(Text, cells), Text(verdict, style=_STYLES[claim["verdict"]]))
        self.console.print(table)
        self.console.print(Text(t("paper.marks"), style="dim"))
        self._lists(data)
        self._count(data)

    def show_files(self, paths: list[Path]) -> None:
        """Where everything was written."""
        for path in paths:
            self.console.print(self.t("paper.written", path=str(path)), soft_wrap=True)

    def _lists(self, data: Data) -> None:
        t = self.t
        self.console.print()
        self.console.print(Text(t("paper.fitted_title"), style="bold cyan"))
        for each in data["fitted"]:
            value = f"{each['value']:.6g}"
            self.console.print(f"  · {t('paper.fitted_' + each['item'], value=value)}")
        self.console.print()
        self.console.print(Text(t("paper.unchecked_title"), style="bold cyan"))
        for key in data["unchecked"]:
            self.console.print(f"  · {t('paper.unchecked_' + key)}")
        self.console.print()

    def _count(self, data: Data) -> None:
        told = counted(data)
        style = "bold yellow" if data.get("interrupted") else "bold green"
        style = "bold red" if told.params["fails"] else style
        self.console.print(Text(self.t.message(told), style=style))


def counted(data: Data) -> Message:
    """How many claims came out how; of a check that was interrupted, that these are not all."""
    found = [claim["verdict"] for claim in data["claims"]]
    counts = {verdict: found.count(verdict) for verdict in _STYLES}
    parts = data.get("interrupted")
    if parts:
        return message("paper.count_so_far", done=parts["done"], of=parts["of"], **counts)
    return message("paper.count", **counts)


def claim_cells(t: Translator, claim: Data) -> list[str]:
    """A claim: what it is, the paper's figure, ours, the tolerance, the verdict."""
    return [
        _title(t, claim), _paper(t, claim), _ours(claim), _tolerance(t, claim),
        t(f"paper.verdict_{claim['verdict']}"),
    ]  # fmt: skip


def _title(t: Translator, claim: Data) -> str:
    title = t(f"paper.item_{claim['item']}", subject=claim["subject"])
    mark = " (1)" if claim["fitted"] else " (2)" if claim["assumed"] else ""
    return title + mark


def _paper(t: Translator, claim: Data) -> str:
    if claim["paper"] is None:
        return t("paper.in_words") if claim["basis"] == "said" else DASH
    return _number(claim["paper"], claim["unit"])


def _ours(claim: Data) -> str:
    ours, unit = claim["ours"], claim["unit"]
    if claim["tolerance"]["kind"] == "covers":
        return f"{_number(ours['lowest'], unit)} … {_number(ours['highest'], unit)}"
    if ours["deviation"] is None:
        return _number(ours["mean"], unit)
    mean = f"{ours['mean']:,.{_DIGITS[unit]}f} ± {ours['deviation']:.{_DIGITS[unit]}f}"
    return mean + _SUFFIX.get(unit, "")


def _tolerance(t: Translator, claim: Data) -> str:
    kind, value = claim["tolerance"]["kind"], claim["tolerance"]["value"]
    if kind in ("absolute", "covers"):
        # All of these are of shares.
        value = f"{value:.1f}"
    elif kind in ("at_least", "at_most"):
        value = _number(value, claim["unit"])
    return t(f"paper.tolerance_{kind}", value=value)


def _number(value: float, unit: str) -> str:
    return f"{value:,.{_DIGITS[unit]}f}{_SUFFIX.get(unit, '')}"


def paper_json(data: Data) -> str:
    """The text of ``paper.json``: the same for the same seeds."""
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def paper_csv(data: Data) -> str:
    """The text of ``paper.csv``: one line for each claim; unknown is empty."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, _CSV, lineterminator="\n")
    writer.writeheader()
    for claim in data["claims"]:
        ours, tolerance = claim["ours"], claim["tolerance"]
        row = {name: claim[name] for name in _CSV if name in claim} | {
            "mean": ours["mean"],
            "deviation": ours["deviation"],
            "lowest": ours["lowest"],
            "highest": ours["highest"],
            "tolerance": tolerance["kind"],
            "tolerance_value": tolerance["value"],
            "seeds": " ".join(map(str, claim["seeds"])),
        }
        writer.writerow(row)
    return stream.getvalue()
