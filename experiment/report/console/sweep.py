"""Sweeps on the console: progress with remaining time, a table, and the files."""

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

# Maximum rows on the console.
_MAX_ROWS = 40
# Seconds between lines of progress without a terminal.
_LINE_EVERY_S = 30.0


class SweepConsole(Console):
    """Prints progress and results of a sweep."""

    def begin(self, cells: int, missing: int, workers: int, address: str | None) -> None:
        """Print the number of cells, and the workers that compute missing ones."""
        t, finished = self.t, cells - missing
        self.console.print(Text(t("sweep.title", cells=cells), style="bold cyan"))
        if address:
            text = t("sweep.found_ray", finished=finished, missing=missing, address=address)
        else:
            text = t("sweep.found", finished=finished, missing=missing, workers=workers)
        self.console.print(Text(text, style="dim"))

    @contextmanager
    def progress(self, total: int) -> Iterator[Advance]:
        """Show progress with remaining time: a bar on a terminal, otherwise lines at intervals."""
        if not self.console.is_terminal:
            yield _Lines(self, total).advance
            return
        with self.bar(self.t("sweep.running"), total) as advance:
            yield advance

    def interrupted(self, finished: int, cells: int, directory: Path) -> None:
        """Print that finished cells are kept."""
        text = self.t("sweep.interrupted", finished=finished, cells=cells, path=str(directory))
        self.console.print(Text(text, style="yellow"), soft_wrap=True)

    def show(self, rows: Sequence[Row], paths: Sequence[Path]) -> None:
        """Print the table and the files; the first file has all rows."""
        t = self.t
        self.console.print(self._table(rows[:_MAX_ROWS]))
        if len(rows) > _MAX_ROWS:
            self.console.print(t("sweep.more", n=len(rows) - _MAX_ROWS, path=str(paths[0])))
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
    """Progress as lines, without a terminal."""

    def __init__(self, out: Console, total: int) -> None:
        self._out, self._total = out, total
        self._began = self._spoke = time.monotonic()
        self._done = 0

    def advance(self) -> None:
        """Count a finished cell."""
        self._done += 1
        now = time.monotonic()
        if now - self._spoke < _LINE_EVERY_S:
            return
        self._spoke = now
        left = (now - self._began) / self._done * (self._total - self._done)
        text = self._out.t("sweep.line", done=self._done, total=self._total, time=left)
        self._out.console.print(text)
