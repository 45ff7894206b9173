"""Tables with a column for each arm, on a console of any width.

Where not all arms fit beside each other without breaking a word or a figure, they are spread over
several tables, one below the other, each with the labels of its rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

from experiment.report.texts import arm_name
from experiment.report.wrap import wrap

if TYPE_CHECKING:
    from experiment.report.console import ConsoleReporter

_EDGES = 1  # the right border of a table
_AROUND = 3  # border and padding of a column
_LABELS = (40, 28, 22, 18, 14, 10)  # widths that labels may have, the best first
_WHOLE = 16  # a figure up to so many cells is not broken


@dataclass(frozen=True, slots=True)
class Line:
    """A row: its label and a cell for each arm; without cells, the heading of what follows."""

    label: Text
    cells: Sequence[Text] = ()


def show_arms(out: ConsoleReporter, head: str, arms: Sequence[str], lines: Sequence[Line]) -> None:
    """Print the table, or as many as it takes."""
    names = [wrap(_broken(arm_name(out.t, arm)), _WHOLE) for arm in arms]
    columns = [
        _Column(
            i,
            names[i],
            max([_need(names[i]), *(_need(o.cells[i].plain) for o in lines if o.cells)]),
        )
        for i in range(len(arms))
    ]
    labels, tables = _arranged(head, columns, lines, out.console.width - _EDGES - _AROUND)
    for chosen in tables:
        _show(out, head, labels, chosen, lines)


@dataclass(frozen=True, slots=True)
class _Column:
    """An arm: its place among all, its name in lines, and the cells that it needs."""

    place: int
    name: str
    need: int


def _arranged(
    head: str, columns: Sequence[_Column], lines: Sequence[Line], width: int
) -> tuple[int, list[list[_Column]]]:
    """Cells for the labels, and the arms of each table: few tables, and labels of few lines."""
    texts = [head, *(one.label.plain for one in lines)]
    least, most = max(map(_word, texts)), max(map(cell_len, texts))
    widths = [w for w in dict.fromkeys(min(most, w) for w in _LABELS) if w >= least] or [least]
    found = [(labels, list(_slices(columns, width - labels))) for labels in widths]
    fitting = [one for one in found if one[0] + max(c.need for c in columns) + _AROUND <= width]
    return min(fitting or found[-1:], key=lambda one: len(one[1]))


def _show(
    out: ConsoleReporter,
    head: str,
    labels: int,
    columns: Sequence[_Column],
    lines: Sequence[Line],
) -> None:
    table = out.table(wrap(head, labels))
    table.columns[0].width = labels
    for column in columns:
        table.add_column(column.name, justify="right", overflow="fold", width=column.need)
    for one in lines:
        if not one.cells:
            table.add_section()
        label = Text(wrap(one.label.plain, labels), one.label.style, justify=one.label.justify)
        table.add_row(label, *(one.cells[column.place] for column in columns if one.cells))
    out.console.print(table)


def _slices(columns: Sequence[_Column], room: int) -> Iterator[list[_Column]]:
    """As many neighbours as fit, one at least."""
    chosen: list[_Column] = []
    taken = 0
    for column in columns:
        if chosen and taken + column.need + _AROUND > room:
            yield chosen
            chosen, taken = [], 0
        chosen.append(column)
        taken += column.need + _AROUND
    if chosen:
        yield chosen


def _broken(name: str) -> str:
    """A name that may be broken before its bracket: rich breaks lines at spaces alone."""
    return name.replace("（", "\n（")


def _need(cell: str) -> int:
    """Cells that a figure needs so that nothing of it is torn apart."""
    lines = cell.split("\n")
    return max(cell_len(line) if cell_len(line) <= _WHOLE else _word(line) for line in lines)


def _word(text: str) -> int:
    return max((cell_len(word) for word in wrap(text, 1).split()), default=0)
