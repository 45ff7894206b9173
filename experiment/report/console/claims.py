"""The claims on the console: what is said, the figure here, the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from experiment.experiments.claims import Judged
from experiment.report.console.reporter import ConsoleReporter
from experiment.report.pages.claims import details, figure
from experiment.text.messages import Message

_STYLES = {"shown": "bold green", "not_shown": "bold yellow", "untested": "dim"}


class ClaimsConsole:
    """Says what runs, then shows the table."""

    def __init__(self, lang: str, ascii_only: bool) -> None:
        self._out = ConsoleReporter(lang, ascii_only)
        self.t = self._out.t
        self.warn, self.ask = self._out.warn, self._out.ask

    def begin(self, name: str, number: int, of: int) -> None:
        """An experiment begins."""
        title = self._title(name)
        self._out.paragraph(self._out.t("claims.running", title=title, n=number, of=of), "dim")

    def used(self, name: str, path: Path, number: int, of: int) -> None:
        """An experiment is there already, as it would be run now."""
        text = self._out.t(
            "claims.reused", title=self._title(name), path=str(path), n=number, of=of
        )
        self._out.paragraph(text, "dim")

    def not_used(self, path: Path, why: Message) -> None:
        """A run that is there is left alone."""
        text = self._out.t("claims.not_used", path=str(path), why=self._out.t.message(why))
        self._out.paragraph(text, "yellow")

    def interrupted(self, directory: Path) -> None:
        """What is whole is kept for the next time."""
        self._out.paragraph(self._out.t("claims.interrupted", path=str(directory)), "yellow")

    def show(self, judged: Sequence[Judged], notes: Sequence[Message]) -> None:
        """A row for each claim; ``notes`` are on the runs that they are judged by."""
        out, t = self._out, self._out.t
        headers = (t(f"claims.column_{name}") for name in ("claim", "here", "verdict", "from"))
        table = out.table(*headers, right=(1,))
        for one in judged:
            verdict = Text(t(f"claims.verdict_{one.verdict}"), style=_STYLES[one.verdict])
            table.add_row(self._claim(one), figure(t, one), verdict, one.claim.experiment)
        out.console.print(table)
        out.paragraph(t("claims.note"))
        for note in notes:
            out.paragraph(t.message(note), "yellow")

    def took(self, seconds: float) -> None:
        """How long all of it took."""
        self._out.paragraph(self._out.t("claims.took", seconds=seconds), "dim")

    def written(self, path: Path) -> None:
        """Where the same stands as data."""
        self._out.paragraph(str(path), indent=2)

    def _title(self, name: str) -> str:
        return self._out.t(f"experiments.{name.replace('-', '_')}.title")

    def _claim(self, one: Judged) -> Text:
        """The claim, below it what its figure is made of, or why there is none."""
        text = Text(self._out.t(f"claims.{one.claim.name}"))
        for line in details(self._out.t, one):
            text.append("\n" + line, style="dim")
        return text
