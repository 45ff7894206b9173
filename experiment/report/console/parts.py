"""What the consoles of paper and sweep have in common: a terminal, and parts that are done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from experiment.report.console.display import showing
from experiment.report.console.terminal import terminal
from experiment.report.facts.texts import translator

Advance = Callable[[], None]


class PartsConsole:
    """Prints in one language; in ASCII alone where that is asked for."""

    def __init__(self, lang: str, ascii_only: bool = False) -> None:
        self.t = translator(lang, ascii_only)
        self.console = terminal(ascii_only)

    @contextmanager
    def bar(self, text: str, total: int) -> Iterator[Advance]:
        """How many parts are done, and the time left, on a terminal; call it for each part."""
        columns = (
            TextColumn("{task.description}", markup=False), BarColumn(bar_width=24),
            TextColumn("{task.completed}/{task.total}"), TimeElapsedColumn(), TimeRemainingColumn(),
        )  # fmt: skip
        progress = Progress(*columns, console=self.console, transient=True)
        with showing(progress):
            task = progress.add_task(text, total=total)
            yield lambda: progress.advance(task)
