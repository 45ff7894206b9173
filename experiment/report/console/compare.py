"""Comparisons on the console: differences of the setups, figures, and gates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from experiment.compare.gate import GateResult, tally
from experiment.compare.results import Comparison, Difference, Row
from experiment.report.console.lines import Console
from experiment.report.console.table import Table
from experiment.report.facts.compare import (
    GATE_COLUMNS,
    counted,
    difference_cells,
    gate_headline,
    limit_cells,
    row_cells,
    side_text,
    title,
    where,
    why,
)
from experiment.report.facts.texts import preview
from experiment.text.messages import Message

_STYLES = {"better": "green", "worse": "bold red", "differs": "yellow", "unknown": "yellow",
           "passed": "green", "failed": "bold red", "not_comparable": "yellow"}  # fmt: skip
_VALUE_WIDTH = 44
# Without details: figures by urgency of their verdict, and the most common reasons.
_BRIEF_VERDICTS = ("worse", "better", "differs")
_MAX_DIFFERENCES, _MAX_ROWS, _MAX_REASONS = 2, 3, 1


class CompareConsole(Console):
    """Prints a comparison in fifteen lines; all figures with ``details``."""

    def __init__(self, lang: str, ascii_only: bool = False, details: bool = False) -> None:
        super().__init__(lang, ascii_only)
        self.details = details

    def show(self, comparison: Comparison) -> None:
        """Print the outcome, both sides, notes, differences of the setups, and the figures."""
        t = self.t
        self.console.print(Text(t.message(counted(comparison)), style="bold"))
        for name, side in (("left", comparison.left), ("right", comparison.right)):
            self.console.print(t(f"compare.{name}") + " " + side_text(t, side), soft_wrap=True)
        for note in comparison.notes:
            self.note(note)
        self._differences(comparison.differences)
        self._figures(comparison)

    def note(self, note: Message) -> None:
        """Print a note."""
        text = self.t("console.note", text=self.t.message(note))
        self.console.print(Text(text, style="yellow"), soft_wrap=True)

    def gate(self, judged: Sequence[GateResult]) -> None:
        """Print each limit with its figure and verdict."""
        t = self.t
        self.console.print()
        self.console.print(Text(t("compare.gate.title"), style="bold cyan"))
        table = Table(t, *(t(f"compare.gate.column_{name}") for name in GATE_COLUMNS))
        for one in judged:
            *cells, verdict = limit_cells(t, one)
            table.add_row(*cells, Text(verdict, style=_STYLES[one.verdict]))
        self.console.print(table)
        bad, _ = tally(judged)
        style = "bold red" if bad else "bold green"
        self.console.print(Text(t.message(gate_headline(judged)), style=style))

    def written(self, *paths: Path) -> None:
        """Print the path of the page; all files with ``details``."""
        super().written(*(path for path in paths if self.details or path.suffix == ".html"))

    def baseline_written(self, path: Path, figures: int) -> None:
        """Print that a baseline was written."""
        text = self.t("compare.baseline_written", path=str(path), n=figures)
        self.console.print(text, soft_wrap=True)

    def _differences(self, differences: Sequence[Difference]) -> None:
        if not differences:
            self.console.print(self.t("compare.no_differences"))
            return
        if not self.details:
            for one in differences[:_MAX_DIFFERENCES]:
                label, *values = self._difference(one)
                line = self.t("compare.changed", label=label, left=values[0], right=values[1])
                self.console.print(line)
            return
        heads = (self.t(f"compare.{name}") for name in ("difference", "left", "right"))
        table = Table(self.t, *heads)
        for one in differences:
            table.add_row(*self._difference(one))
        self.console.print(table)

    def _difference(self, one: Difference) -> list[str]:
        label, *values = difference_cells(self.t, one)
        return [label, *(preview(each, _VALUE_WIDTH) for each in values)]

    def _figures(self, comparison: Comparison) -> None:
        all_rows, differences = comparison.rows, len(comparison.differences)
        if self.details:
            if all_rows:
                self._table(all_rows)
            self._why(all_rows)
            return
        brief = [row for row in all_rows if row.verdict in _BRIEF_VERDICTS]
        rows = sorted(brief, key=lambda row: _BRIEF_VERDICTS.index(row.verdict))[:_MAX_ROWS]
        if rows:
            self._table(rows)
        else:
            self._why(all_rows)
        if left := len(all_rows) - len(rows) + max(0, differences - _MAX_DIFFERENCES):
            self.console.print(Text(self.t("compare.left_out", n=left), style="dim"))

    def _table(self, rows: Sequence[Row]) -> None:
        heads = ("figure", "left", "right", "change", "verdict_column")
        table = Table(self.t, *(self.t(f"compare.{head}") for head in heads), right=(1, 2, 3))
        before = None
        for row in rows:
            place, name = where(self.t, row.figure), self.t.message(title(row.figure))
            if not self.details:
                name = self.t("console.problem", arm=place, text=name)
            elif place != before:
                before = place
                table.add_row(place, style="bold")
            *cells, verdict = row_cells(self.t, row)
            table.add_row(name, *cells, Text(verdict, _STYLES.get(row.verdict, "dim")))
        self.console.print(table)

    def _why(self, rows: Sequence[Row]) -> None:
        """Print each reason once, with its number of figures."""
        for line in why(self.t, rows)[: None if self.details else _MAX_REASONS]:
            self.console.print("  " + line)
