"""The claims on the console: what is said, the figure here, the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from experiment.experiments.claims import Judged
from experiment.report.console.lines import Console
from experiment.report.pages.claims import details, figure
from experiment.text.messages import Message

_STYLES = {"shown": "bold green", "not_shown": "bold yellow", "untested": "dim"}


class ClaimsConsole(Console):
    """Says what runs, then shows the table."""

    def begin(self, name: str, number: int, of: int) -> None:
        """An experiment begins."""
        title = self._title(name)
        self.paragraph(self.t("claims.running", title=title, n=number, of=of), "dim")

    def used(self, name: str, path: Path, number: int, of: int) -> None:
        """An experiment is there already, as it would be run now."""
        text = self.t("claims.reused", title=self._title(name), path=str(path), n=number, of=of)
        self.paragraph(text, "dim")

    def not_used(self, path: Path, why: Message) -> None:
        """A run that is there is left alone."""
        text = self.t("claims.not_used", path=str(path), why=self.t.message(why))
        self.paragraph(text, "yellow")

    def interrupted(self, directory: Path) -> None:
        """What is whole is kept for the next time."""
        self.paragraph(self.t("claims.interrupted", path=str(directory)), "yellow")

    def show(self, judged: Sequence[Judged], notes: Sequence[Message]) -> None:
        """A row for each claim; ``notes`` are on the runs that they are judged by."""
        t = self.t
        headers = (t(f"claims.column_{name}") for name in ("claim", "here", "verdict", "from"))
        table = self.table(*headers, right=(1,))
        for one in judged:
            verdict = Text(t(f"claims.verdict_{one.verdict}"), style=_STYLES[one.verdict])
            table.add_row(self._claim(one), figure(t, one), verdict, one.claim.experiment)
        self.console.print(table)
        self.paragraph(t("claims.note"))
        for note in notes:
            self.paragraph(t.message(note), "yellow")

    def took(self, seconds: float) -> None:
        """How long all of it took."""
        self.paragraph(self.t("claims.took", seconds=seconds), "dim")

    def written(self, *paths: Path) -> None:
        """Where the same stands as a page and as data."""
        for path in paths:
            self.paragraph(str(path), indent=2)

    def _title(self, name: str) -> str:
        return self.t(f"experiments.{name.replace('-', '_')}.title")

    def _claim(self, one: Judged) -> Text:
        """The claim, below it what its figure is made of, or why there is none."""
        text = Text(self.t(f"claims.{one.claim.name}"))
        for line in details(self.t, one):
            text.append("\n" + line, style="dim")
        return text
