"""A benchmark on the console: a line for each arm as it ends, then the tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich import box
from rich.cells import cell_len
from rich.console import JustifyMethod
from rich.status import Status
from rich.table import Table
from rich.text import Text

from experiment.bench.data import BenchData
from experiment.bench.rows import Row
from experiment.events import Event, Notice
from experiment.i18n import readable
from experiment.messages import Message
from experiment.report.bench_facts import facts
from experiment.report.bench_tables import Cells, all_tables
from experiment.report.display import Shown
from experiment.report.terminal import terminal
from experiment.report.texts import arm_name, translator
from experiment.report.wrap import wrap

_WIDEST = 100
# So wide is the longest word that names an arm.
_FIRST = 12
# Between two columns, with a line if there is one.
_GAP = 3


class BenchConsole:
    """Prints what a benchmark does and what it came to."""

    def __init__(self, lang: str, ascii_only: bool = False) -> None:
        self.t = translator(lang, ascii_only)
        self.console = terminal(ascii_only)
        self.box = box.ASCII2 if ascii_only else box.SIMPLE_HEAD
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

    def written(self, path: Path) -> None:
        """Where everything is."""
        self.console.print(self.t("bench.written", path=str(path)), soft_wrap=True)

    def _table(self, cells: Cells) -> None:
        self.console.print()
        self.console.print(Text(cells.title, style="bold"))
        narrow, parts = in_parts(cells, self.console.width)
        for columns in parts:
            self.console.print(self._part(narrow, columns))
        for note in cells.notes:
            self._paragraph(f"· {note}", "dim")

    def _part(self, cells: Cells, columns: Sequence[int]) -> Table:
        table = Table(box=self.box, pad_edge=False)
        for index in columns:
            justify: JustifyMethod = "left" if index in cells.left else "right"
            # Where room is short, rich takes it from the widest columns, figures as well as words.
            least = None if index in cells.left else _least(cells, index)
            table.add_column(cells.header[index], justify=justify, width=least, overflow="fold")
        for place, row in enumerate(cells.rows):
            style = cells.styles[place] if cells.styles else ""
            shown = [Text(readable(row[index])) for index in columns if index < len(row)]
            table.add_row(*shown, style=style)
        return table

    def _paragraph(self, text: str, style: str) -> None:
        width = min(self.console.width, _WIDEST)
        self.console.print(Text(wrap(text, width), style=style))


def in_parts(cells: Cells, width: int) -> tuple[Cells, list[list[int]]]:
    """The table and the columns of each part of it that fits; nothing of a figure is ever cut off.

    Where it is too wide, what stands in brackets goes below its figure, and the columns that still
    find no room go on in a further table, beside the first column again.
    """
    every = list(range(len(cells.header)))
    if _room(cells, every) <= width:
        return cells, [every]
    below = [[cell.replace(" (", "\n(", 1) for cell in row[1:]] for row in cells.rows]
    rows = [[row[0], *rest] for row, rest in zip(cells.rows, below, strict=True)]
    cells = replace(cells, rows=rows)
    parts = [[0]]
    for index in every[1:]:
        if len(parts[-1]) > 1 and _room(cells, [*parts[-1], index]) > width:
            parts.append([0])
        parts[-1].append(index)
    return cells, parts


def _room(cells: Cells, columns: Sequence[int]) -> int:
    """How wide a table of these columns is at least, in cells of a terminal."""
    return sum(_least(cells, index) + _GAP for index in columns)


def _least(cells: Cells, index: int) -> int:
    """Words may be folded; a figure and what stands on its line may not."""
    heads = max((cell_len(word) for word in cells.header[index].split()), default=0)
    found = [_FIRST if index == 0 else min(heads, _FIRST)]
    for row in cells.rows:
        lines = row[index].split("\n") if index < len(row) else []
        words = [word for line in lines for word in line.split()]
        found += [cell_len(each) for each in (words if index in cells.left else lines)]
    return max(found)
