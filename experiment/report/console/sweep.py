"""Cells of a sweep: progress with time left, a table on the console, and the files."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.text import Text

from experiment.report.console.display import Advance
from experiment.report.console.lines import Console
from experiment.report.console.table import Table
from experiment.report.facts.simulation_figures import rounding_note
from experiment.report.facts.values import fixed
from experiment.report.pages.sweep import MEASURES, Row, counted, refusal, sweep_data, varied
from experiment.report.pages.sweep_chart import setting
from experiment.text import DASH

# Of a large grid the console shows the beginning.
_MOST_ROWS = 40
# Without a terminal, seconds between two lines of progress.
_LINE_EVERY_S = 30.0


class SweepConsole(Console):
    """Prints what a sweep does and what it came to."""

    def begin(self, cells: int, missing: int, workers: int, address: str | None) -> None:
        """How many cells there are, and who computes those that are missing."""
        t, finished = self.t, cells - missing
        self.console.print(Text(t("sweep.title", cells=cells), style="bold cyan"))
        if address:
            text = t("sweep.found_ray", finished=finished, missing=missing, address=address)
        else:
            text = t("sweep.found", finished=finished, missing=missing, workers=workers)
        self.console.print(Text(text, style="dim"))

    @contextmanager
    def progress(self, total: int) -> Iterator[Advance]:
        """A bar on a terminal, else a line now and then; both with the time left."""
        if not self.console.is_terminal:
            yield _Lines(self, total).advance
            return
        with self.bar(self.t("sweep.running"), total) as advance:
            yield advance

    def interrupted(self, finished: int, cells: int, directory: Path) -> None:
        """What is finished is kept for the next time."""
        text = self.t("sweep.interrupted", finished=finished, cells=cells, path=str(directory))
        self.console.print(Text(text, style="yellow"), soft_wrap=True)

    def show(self, rows: Sequence[Row], paths: Sequence[Path]) -> None:
        """The table, and the files with everything: the first one has all rows."""
        t = self.t
        self.console.print(self._table(rows[:_MOST_ROWS]))
        if len(rows) > _MOST_ROWS:
            self.console.print(t("sweep.more", n=len(rows) - _MOST_ROWS, path=str(paths[0])))
        if note := rounding_note(dict.fromkeys(row["policy"] for row in rows)):
            self.console.print(Text(t.message(note), style="dim"))
        self.console.print(Text(t.message(counted(sweep_data(rows))), style="bold"))
        self.written(*paths)

    def _table(self, rows: Sequence[Row]) -> Table:
        differ = varied(rows)
        names = ("settings", *MEASURES)
        heads = (self.t(f"sweep.column_{name}") for name in names)
        table = Table(self.t, *heads, right=range(1, len(names)))
        for row in rows:
            given = [
                f"{name} {setting(name, row[name])}" for name in differ if row[name] is not None
            ]
            what = ", ".join(given) or row["id"]
            if row["error"] is not None:
                table.add_row(what, Text(self.t.message(refusal(row)), style="yellow"))
                continue
            forms = MEASURES.values()
            table.add_row(what, *(fixed(row[n], digits, unit) or DASH for n, digits, unit in forms))
        return table


class _Lines:
    """Progress where nobody can draw a bar."""

    def __init__(self, out: Console, total: int) -> None:
        self._out, self._total = out, total
        self._began = self._spoke = time.monotonic()
        self._done = 0

    def advance(self) -> None:
        """One more cell has ended."""
        self._done += 1
        now = time.monotonic()
        if now - self._spoke < _LINE_EVERY_S:
            return
        self._spoke = now
        left = (now - self._began) / self._done * (self._total - self._done)
        text = self._out.t("sweep.line", done=self._done, total=self._total, time=left)
        self._out.console.print(text)
