"""Progress of the claims on the console; their table is that of the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiment.experiments.claims import Judged
from experiment.report.console.lines import Console
from experiment.report.pages.claims import claims_text
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
        self.page(claims_text(self.t, judged, notes, {}))

    def took(self, seconds: float) -> None:
        """Print the total duration."""
        self.paragraph(self.t("claims.took", seconds=seconds), "dim")
