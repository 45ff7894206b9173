"""The claims on the console: what is said, the figure here, the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.text import Text

from experiment.experiments.claims import Judged
from experiment.i18n import DASH
from experiment.report.claims_page import figure
from experiment.report.console import ConsoleReporter

_STYLES = {"shown": "bold green", "not_shown": "bold yellow", "untested": "dim"}


class ClaimsConsole:
    """Says what runs, then shows the table."""

    def __init__(self, lang: str, ascii_only: bool) -> None:
        self._out = ConsoleReporter(lang, ascii_only)

    def begin(self, name: str, number: int, of: int) -> None:
        """An experiment begins."""
        table = name.replace("-", "_")
        title = self._out.t(f"experiments.{table}.title")
        self._out.paragraph(self._out.t("claims.running", title=title, n=number, of=of), "dim")

    def show(self, judged: Sequence[Judged], sizes: Mapping[str, str]) -> None:
        """A row for each claim; ``sizes`` are those of the experiments that were run."""
        out, t = self._out, self._out.t
        headers = (t(f"claims.column_{name}") for name in ("claim", "here", "verdict", "from"))
        table = out.table(*headers, right=(1,))
        for one in judged:
            verdict = Text(t(f"claims.verdict_{one.verdict}"), style=_STYLES[one.verdict])
            experiment = one.claim.experiment or DASH
            said = t(f"claims.{one.claim.name}")
            table.add_row(said, figure(t, one), verdict, experiment)
        out.console.print(table)
        out.paragraph(t("claims.note"))
        if "quick" in sizes.values():
            out.paragraph(t("claims.quick"), "yellow")

    def written(self, path: Path) -> None:
        """Where the same stands as data."""
        self._out.paragraph(str(path), indent=2)
