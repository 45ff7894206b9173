"""Console of a benchmark: a line for each finished arm, then the page's texts."""

from __future__ import annotations

from rich.status import Status
from rich.text import Text

from experiment.bench.data import BenchData
from experiment.bench.rows import Row
from experiment.events import Event, Notice
from experiment.report.console.display import ActiveDisplay
from experiment.report.console.lines import Console
from experiment.report.facts.texts import arm_name
from experiment.report.pages.bench import bench_text
from experiment.text.messages import Message


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
        if row.status == "finished":
            text = self.t("bench.row", **params, rate=row.useful_tokens_per_s, time=row.wall_s)
        else:
            why = self.t.message(row.reason) if row.reason else None
            text = self.t("bench.row_failed", **params, why=why)
        self.console.print(text, soft_wrap=True)

    def end(self) -> None:
        """Remove the activity line."""
        self._status.end()

    def show(self, data: BenchData) -> None:
        """Print conditions and tables of a benchmark."""
        self.end()
        self.page(bench_text(self.t, data))
