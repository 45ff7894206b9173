"""Base of all consoles: headings, lines, tables and notes, in one language."""

from __future__ import annotations

import sys
from collections.abc import Container, Iterator
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any, TextIO, cast

from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.text import Text

from experiment.process.interrupts import read_answer
from experiment.report.console.display import Advance, showing
from experiment.report.console.table import Table
from experiment.report.console.wrap import fold
from experiment.report.facts.texts import AsciiFile, Cells, PageText, translator
from experiment.text import Translator, readable
from experiment.text.messages import Message

# Of verdicts, and of rows of tables.
STYLES = {"shown": "bold green", "not_shown": "bold yellow", "untested": "dim",
          "missed": "bold red", "bold": "bold", "": ""}  # fmt: skip
_MAX_WIDTH = 1000  # lines are padded to COLUMNS, which may be any number


class Terminal(RichConsole):
    """A rich console that escapes control characters in texts."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Render with escaped control characters."""
        for part in super().render(renderable, options):
            yield part if part.control else Segment(readable(part.text), part.style)


def terminal(ascii_only: bool) -> RichConsole:
    """Console on standard output, without markup; optionally in ASCII only."""
    stream = cast("TextIO", AsciiFile(sys.stdout)) if ascii_only else None
    console = Terminal(file=stream, highlight=False, safe_box=True, emoji=False, markup=False)
    if console.width > _MAX_WIDTH:
        console.width = _MAX_WIDTH
    return console


class Console:
    """Prints to the terminal.

    Args:
        lang: language of everything printed.
        ascii_only: no box drawing, and no signs outside ASCII.
        quiet: print only results.
    """

    def __init__(self, lang: str, ascii_only: bool = False, quiet: bool = False) -> None:
        self.t: Translator = translator(lang, ascii_only)
        self.console = terminal(ascii_only)
        self.quiet = quiet
        self._rule = "-" if ascii_only else "─"

    def section(self, key: str, **params: Any) -> None:
        """Print a heading."""
        if self.quiet:
            return
        title = Text(self.t(key, **params), style="bold cyan")
        self.console.print()
        self.console.rule(title, characters=self._rule, align="left", style="cyan")
        if self.t.has(key + "_about"):
            self.paragraph(self.t(key + "_about", **params), "dim")

    def line(self, text: str | Text, style: str = "", indent: int = 0) -> None:
        """Print a line unless quiet."""
        if not self.quiet:
            self.paragraph(text, style, indent)

    def paragraph(self, text: str | Text, style: str = "", indent: int = 0) -> None:
        """Print text with the line breaks of its language."""
        text = Text(text, style) if isinstance(text, str) else text
        lines = fold(text, self.console.width - indent)
        self.console.print(Text("\n").join(Text(" " * indent) + line for line in lines))

    def path(self, name: str) -> None:
        """Print a path without line breaks, so that it can be copied."""
        self.console.print(Text(f"  {name}"), soft_wrap=True)

    def written(self, *paths: Path) -> None:
        """Print the paths of written files."""
        for path in paths:
            self.console.print(self.t("console.written", path=str(path)), soft_wrap=True)

    @contextmanager
    def bar(self, text: str, total: int) -> Iterator[Advance]:
        """Show progress and remaining time on a terminal; returns a function to call per part."""
        if not self.console.is_terminal:
            yield lambda _="": None
            return
        columns = (
            TextColumn("{task.description}", markup=False), BarColumn(bar_width=24),
            TextColumn("{task.completed}/{task.total}"), TimeElapsedColumn(), TimeRemainingColumn(),
        )  # fmt: skip
        progress = Progress(*columns, console=self.console, transient=True)
        with showing(progress):
            task = progress.add_task(text, total=total)
            yield lambda next_text=text: progress.update(task, advance=1, description=next_text)

    def table(self, *headers: str, right: Container[int] = ()) -> Table:
        """Create an empty table; columns in ``right`` are numbers."""
        return Table(self.t, *headers, right=right)

    def cells(self, cells: Cells) -> None:
        """Print a table with its notes; its title is above it, or in place of an empty first head.

        A row has the style of its verdict in the columns of words after the first one, or as a
        whole if there are none.
        """
        first, *heads = cells.header
        if first and cells.title:
            self.console.print()
            self.paragraph(cells.title, "bold")
        words = {column for column in cells.left if column}
        numbers = set(range(1, len(cells.header))) - words
        table = self.table(first or cells.title, *heads, right=numbers)
        for row, style in zip_longest(cells.rows, cells.styles, fillvalue=""):
            places = words if words and len(row) == len(cells.header) else range(len(row))
            styles = (STYLES[style] if place in places else "" for place in range(len(row)))
            table.add_row(*map(Text, map(readable, row), styles))
        self.console.print(table)
        for note in cells.notes:
            self.line(note, "dim")

    def page(self, text: PageText) -> None:
        """Print the texts of a page; its answer is last, where a reader of a terminal looks."""
        self.paragraph(text.kicker, "bold cyan")
        for fact in text.facts:
            self.paragraph(fact, "dim")
        for table in text.tables:
            self.cells(table)
        for heading, lines in text.lists.items():
            self.console.print()
            self.paragraph(heading, "bold cyan")
            for line in lines:
                self.paragraph(f"· {line}", indent=2)
        self.console.print()
        self.paragraph(text.headline, "bold")
        for lines, style in ((text.lines, ""), (text.alarms, "bold red"), (text.notes, "yellow")):
            for line in lines:
                self.paragraph(line, style)

    def warn(self, text: Message, *, always: bool = False) -> None:
        """Print a warning; ``always``: even if quiet."""
        if always or not self.quiet:
            self.paragraph(self.t("console.note", text=self.t.message(text)), "yellow")

    def ask(self, question: Message) -> str:
        """Print a question; return the typed answer in lower case."""
        self.console.print(self.t.message(question), end=" ")
        return read_answer(input).strip().lower()
