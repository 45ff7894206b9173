"""Claims of the PagedAttention paper on the console."""

from __future__ import annotations

from rich.text import Text

from experiment.report.console.lines import Console
from experiment.report.console.table import Table
from experiment.report.facts.paper import (
    Data,
    counted,
    fitted_lines,
    paper_cells,
)

_STYLES = {"shown": "green", "missed": "bold red", "": "dim", "bold": "bold"}


class PaperConsole(Console):
    """Prints the comparison."""

    def show(self, data: Data) -> None:
        """Print the table of claims, fitted parameters, and claims that cannot be checked."""
        t = self.t
        seeds = data["seeds"]
        self.console.print(Text(t("paper.title"), style="bold cyan"))
        self.console.print(Text(t("paper.about", n=len(seeds)), style="dim"))
        cells = paper_cells(t, data)
        table = Table(t, *cells.header, right=(1, 2, 3))
        for (*row, last), style in zip(cells.rows, cells.styles, strict=True):
            table.add_row(*row, Text(last, _STYLES[style]))
        self.console.print(table)
        self.console.print(Text(t("paper.marks"), style="dim"))
        self._lists(data)
        self._count(data)

    def _lists(self, data: Data) -> None:
        t = self.t
        self.console.print()
        self.console.print(Text(t("paper.fitted_title"), style="bold cyan"))
        for line in fitted_lines(t, data):
            self.console.print(f"  · {line}")
        self.console.print()
        self.console.print(Text(t("paper.unchecked_title"), style="bold cyan"))
        for key in data["unchecked"]:
            self.console.print(f"  · {t('paper.unchecked_' + key)}")
        self.console.print()

    def _count(self, data: Data) -> None:
        verdicts = counted(data)
        style = "bold yellow" if data.get("interrupted") else "bold green"
        style = "bold red" if verdicts.params["fails"] else style
        self.console.print(Text(self.t.message(verdicts), style=style))
