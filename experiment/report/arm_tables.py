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
_LABELS = 22  # no more for the labels while arms need the room
_WHOLE = 16  # a figure up to so many cells is not broken


@dataclass(frozen=True, slots=True)
class Line:
    """A row: its label and a cell for each arm; without cells, the heading of what follows."""

    label: Text
    cells: Sequence[Text] = ()


def show_arms(out: ConsoleReporter, head: str, arms: Sequence[str], lines: Sequence[Line]) -> None:
    """Print the table, or as many as it takes."""
    names = [_broken(arm_name(out.t, arm)) for arm in arms]
    needs = [
        max([_word(names[i]), *(_need(one.cells[i].plain) for one in lines if one.cells)])
        for i in range(len(arms))
    ]
    labels = max((_word(one.label.plain) for one in lines), default=0)
    labels = max(labels, min(_LABELS, max((cell_len(o.label.plain) for o in lines), default=0)))
    for chosen in _slices(needs, out.console.width - _EDGES - labels - _AROUND):
        _show(out, head, labels, [(i, names[i], needs[i]) for i in chosen], lines)


def _show(
    out: ConsoleReporter,
    head: str,
    labels: int,
    columns: Sequence[tuple[int, str, int]],
    lines: Sequence[Line],
) -> None:
    table = out.table(wrap(head, max(labels, _LABELS)))
    table.columns[0].min_width = labels
    for _, name, need in columns:
        table.add_column(name, justify="right", overflow="fold", min_width=need)
    for one in lines:
        if not one.cells:
            table.add_section()
        table.add_row(one.label, *(one.cells[i] for i, _, _ in columns if one.cells))
    out.console.print(table)


def _slices(needs: Sequence[int], room: int) -> Iterator[list[int]]:
    """As many neighbours as fit, one at least."""
    chosen: list[int] = []
    taken = 0
    for index, need in enumerate(needs):
        if chosen and taken + need + _AROUND > room:
            yield chosen
            chosen, taken = [], 0
        chosen.append(index)
        taken += need + _AROUND
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
