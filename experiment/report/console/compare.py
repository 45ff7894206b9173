"""Comparisons on the console: differences of the setups, figures, and gates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from experiment.compare.gate import GateResult
from experiment.compare.results import Comparison
from experiment.report.console.lines import Console
from experiment.report.facts.compare import (
    counted,
    difference_cells,
    gate_text,
    row_cells,
    side_text,
    title,
    where,
    why,
)
from experiment.report.facts.texts import preview
from experiment.report.pages.compare import compare_text
from experiment.text.messages import Message

_STYLES = {"better": "green", "worse": "bold red"}
_VALUE_WIDTH = 44
# Without details: differences by how likely they explain the figures.
_GROUPS = ("model", "config", "versions", "machine")
# Without details: figures by urgency of their verdict, and the most common reason.
_BRIEF_VERDICTS = ("worse", "better", "differs")
_MAX_DIFFERENCES, _MAX_ROWS = 2, 3


class CompareConsole(Console):
    """Prints a comparison in fifteen lines; the texts of the page with ``details``."""

    def __init__(self, lang: str, ascii_only: bool = False, details: bool = False) -> None:
        super().__init__(lang, ascii_only)
        self.details = details

    def show(self, comparison: Comparison) -> None:
        """Print the outcome, both sides, notes, differences of the setups, and the figures."""
        t = self.t
        if self.details:
            self.page(compare_text(t, comparison))
            return
        self.paragraph(t.message(counted(comparison)), "bold")
        for name, side in (("left", comparison.left), ("right", comparison.right)):
            self.console.print(t(f"compare.{name}") + " " + side_text(t, side), soft_wrap=True)
        for note in comparison.notes:
            self.note(note)
        known = sorted(comparison.differences, key=lambda one: _GROUPS.index(one.group))
        for one in known[:_MAX_DIFFERENCES]:
            label, *values = difference_cells(t, one)
            left, right = (preview(each, _VALUE_WIDTH) for each in values)
            self.console.print(t("compare.changed", label=label, left=left, right=right))
        if not comparison.differences:
            self.console.print(t("compare.no_differences"))
        self._figures(comparison)

    def note(self, note: Message) -> None:
        """Print a note."""
        text = self.t("console.note", text=self.t.message(note))
        self.console.print(Text(text, style="yellow"), soft_wrap=True)

    def gate(self, judged: Sequence[GateResult]) -> None:
        """Print each limit with its figure and verdict, then how many hold."""
        self.page(gate_text(self.t, judged))

    def written(self, *paths: Path) -> None:
        """Print the path of the page; all files with ``details``."""
        super().written(*(path for path in paths if self.details or path.suffix == ".html"))

    def baseline_written(self, path: Path, figures: int) -> None:
        """Print that a baseline was written."""
        text = self.t("compare.baseline_written", path=str(path), n=figures)
        self.console.print(text, soft_wrap=True)

    def _figures(self, comparison: Comparison) -> None:
        """Print the figures whose verdicts matter most, or the most common reason for none."""
        t = self.t
        brief = [row for row in comparison.rows if row.verdict in _BRIEF_VERDICTS]
        rows = sorted(brief, key=lambda row: _BRIEF_VERDICTS.index(row.verdict))[:_MAX_ROWS]
        if not rows:
            for line in why(t, comparison.rows)[:1]:
                self.console.print("  " + line)
        else:
            heads = ("figure", "left", "right", "change", "verdict_column")
            table = self.table(*(t(f"compare.{head}") for head in heads), right=(1, 2, 3))
            for row in rows:
                place, name = where(t, row.figure), t.message(title(row.figure))
                *cells, verdict = row_cells(t, row)
                style = _STYLES.get(row.verdict, "yellow")
                label = t("console.problem", arm=place, text=name)
                table.add_row(label, *cells, Text(verdict, style))
            self.console.print(table)
        more = max(0, len(comparison.differences) - _MAX_DIFFERENCES)
        if left := len(comparison.rows) - len(rows) + more:
            self.line(t("compare.left_out", n=left), "dim")
