"""Claims on the console: claim, measured figure, verdict."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from experiment.experiments.claims import Judged
from experiment.report.console.lines import VERDICT_STYLES, Console
from experiment.report.pages.claims import claim_cells
from experiment.text.messages import Message


class ClaimsConsole(Console):
    """Prints progress, then the table of claims."""

    def begin(self, name: str, number: int, of: int) -> None:
        """Print that an experiment begins."""
        self.paragraph(self.t("claims.running", name=name, n=number, of=of), "dim")

    def used(self, name: str, path: Path, number: int, of: int) -> None:
        """Print that an existing run is reused."""
        text = self.t("claims.reused", name=name, path=str(path), n=number, of=of)
        self.paragraph(text, "dim")

    def not_used(self, path: Path, why: Message) -> None:
        """Print that an existing run is not reused."""
        text = self.t("claims.not_used", path=str(path), why=self.t.message(why))
        self.paragraph(text, "yellow")

    def interrupted(self, directory: Path) -> None:
        """Print that complete runs are kept."""
        self.paragraph(self.t("claims.interrupted", path=str(directory)), "yellow")

    def show(self, judged: Sequence[Judged], notes: Sequence[Message]) -> None:
        """Print a row for each claim; ``notes`` are about the runs."""
        cells = claim_cells(self.t, judged)
        table = self.table(*cells.header, right=(1,))
        for (claim, figure, verdict, run), style in zip(cells.rows, cells.styles, strict=True):
            title, *details = claim.splitlines()
            text = Text.assemble(title, *((f"\n{line}", "dim") for line in details))
            table.add_row(text, figure, Text(verdict, style=VERDICT_STYLES[style]), run)
        self.console.print(table)
        self.paragraph(self.t("claims.note"))
        for note in notes:
            self.paragraph(self.t.message(note), "yellow")

    def took(self, seconds: float) -> None:
        """Print the total duration."""
        self.paragraph(self.t("claims.took", seconds=seconds), "dim")

    def written(self, *paths: Path) -> None:
        """Print the paths of page and data."""
        for path in paths:
            self.paragraph(str(path), indent=2)
