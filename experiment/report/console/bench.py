"""A benchmark on the console: a line for each arm as it ends, then the tables."""

from __future__ import annotations

from rich.status import Status
from rich.text import Text

from experiment.bench.data import BenchData
from experiment.bench.rows import Row
from experiment.events import Event, Notice
from experiment.report.console.display import Shown
from experiment.report.console.lines import Console
from experiment.report.console.wrap import wrap
from experiment.report.facts.bench import facts
from experiment.report.facts.bench_tables import Cells, all_tables
from experiment.report.facts.texts import arm_name
from experiment.text.messages import Message

_WIDEST = 100


class BenchConsole(Console):
    """Prints what a benchmark does and what it came to."""

    def __init__(self, lang: str, ascii_only: bool = False) -> None:
        super().__init__(lang, ascii_only)
        self._status: Shown[Status] = Shown()

    def say(self, text: Message) -> None:
        """What happens now: a line that the next one replaces; without a terminal, a line."""
        line = self.t.message(text)
        if not self.console.is_terminal:
            self.console.print(line, soft_wrap=True)
            return
        if self._status.now is None:
            self._status.begin(self.console.status(line))
        if self._status.now is not None:
            self._status.now.update(Text(line))

    def handle(self, event: Event) -> None:
        """Events of the runs; only what a person should know is shown."""
        if isinstance(event, Notice):
            self.console.print(Text(self.t.message(event.text), style="dim"), soft_wrap=True)

    def row(self, row: Row) -> None:
        """An arm of a round has been read."""
        told = {"workload": row.workload, "arm": arm_name(self.t, row.arm), "n": row.round + 1}
        if row.status != "finished":
            why = self.t.message(row.reason) if row.reason else None
            self.console.print(self.t("bench.row_failed", **told, why=why), soft_wrap=True)
            return
        self.console.print(
            self.t("bench.row", **told, rate=row.useful_tokens_per_s, time=row.wall_s),
            soft_wrap=True,
        )

    def end(self) -> None:
        """Take away the line of what happens."""
        self._status.end()

    def show(self, data: BenchData) -> None:
        """Facts and tables of a benchmark."""
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
        width = min(self.console.width, _WIDEST)
        self.console.print(Text(wrap(text, width), style=style))
