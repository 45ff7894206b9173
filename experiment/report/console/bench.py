"""Console of a benchmark: a line for each finished arm, then the tables."""

from __future__ import annotations

from rich.status import Status
from rich.text import Text

from experiment.bench.data import BenchData
from experiment.bench.rows import Row
from experiment.events import Event, Notice
from experiment.report.console.display import ActiveDisplay
from experiment.report.console.lines import Console
from experiment.report.console.wrap import wrap
from experiment.report.facts.bench import facts
from experiment.report.facts.bench_tables import all_tables
from experiment.report.facts.page_text import Cells
from experiment.report.facts.texts import arm_name
from experiment.text.messages import Message

_MAX_WIDTH = 100


class BenchConsole(Console):
    """Prints progress and results of a benchmark."""

    def __init__(self, lang: str, ascii_only: bool = False) -> None:
        super().__init__(lang, ascii_only)
        self._status: ActiveDisplay[Status] = ActiveDisplay()

    def say(self, text: Message) -> None:
        """Show the current activity in a line that is replaced; a plain line without a terminal."""
        line = self.t.message(text)
        if not self.console.is_terminal:
            self.console.print(line, soft_wrap=True)
            return
        if self._status.now is None:
            self._status.begin(self.console.status(line))
        if self._status.now is not None:
            self._status.now.update(Text(line))

    def handle(self, event: Event) -> None:
        """Handle an event of a run; only important ones are printed."""
        if isinstance(event, Notice):
            self.console.print(Text(self.t.message(event.text), style="dim"), soft_wrap=True)

    def row(self, row: Row) -> None:
        """Print the row of an arm."""
        params = {"workload": row.workload, "arm": arm_name(self.t, row.arm), "n": row.round + 1}
        if row.status != "finished":
            why = self.t.message(row.reason) if row.reason else None
            self.console.print(self.t("bench.row_failed", **params, why=why), soft_wrap=True)
            return
        self.console.print(
            self.t("bench.row", **params, rate=row.useful_tokens_per_s, time=row.wall_s),
            soft_wrap=True,
        )

    def end(self) -> None:
        """Remove the activity line."""
        self._status.end()

    def show(self, data: BenchData) -> None:
        """Print facts and tables of a benchmark."""
        self.end()
        self.console.print(Text(self.t("bench.title"), style="bold cyan"))
        for fact in facts(self.t, data):
            self._paragraph(fact, "dim")
        for cells in all_tables(self.t, data):
            self._table(cells)

    def _table(self, cells: Cells) -> None:
        self.console.print()
        self.console.print(Text(cells.title, style="bold"))
        numbers = set(range(len(cells.header))) - set(cells.left)
        table = self.table(*cells.header, right=numbers)
        for place, row in enumerate(cells.rows):
            table.add_row(*row, style=cells.styles[place] if cells.styles else "")
        self.console.print(table)
        for note in cells.notes:
            self._paragraph(f"· {note}", "dim")

    def _paragraph(self, text: str, style: str) -> None:
        width = min(self.console.width, _MAX_WIDTH)
        self.console.print(Text(wrap(text, width), style=style))
