"""Sweeps on the console: progress with remaining time, a table, and the files."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.text import Text

from experiment.report.console.display import Advance
from experiment.report.console.lines import Console
from experiment.report.facts.simulation_figures import rounding_note
from experiment.report.pages.sweep import Row, counted, sweep_cells, sweep_data

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
        if self.console.is_terminal:
            with self.bar(self.t("sweep.running"), total) as advance:
                yield advance
            return
        began = spoke = time.monotonic()
        done = 0

        def line() -> None:
            nonlocal done, spoke
            done += 1
            now = time.monotonic()
            if now - spoke >= _LINE_EVERY_S:
                spoke = now
                left = (now - began) / done * (total - done)
                self.console.print(self.t("sweep.line", done=done, total=total, time=left))

        yield line

    def interrupted(self, finished: int, cells: int, directory: Path) -> None:
        """Print that finished cells are kept."""
        text = self.t("sweep.interrupted", finished=finished, cells=cells, path=str(directory))
        self.console.print(Text(text, style="yellow"), soft_wrap=True)

    def show(self, rows: Sequence[Row], paths: Sequence[Path]) -> None:
        """Print the table and the files; the first file has all rows."""
        data = sweep_data(rows)
        self.cells(sweep_cells(self.t, data, _MAX_ROWS, str(paths[0])))
        if note := rounding_note(dict.fromkeys(row["policy"] for row in rows)):
            self.line(self.t.message(note), "dim")
        self.paragraph(self.t.message(counted(data)), "bold")
        self.written(*paths)
