"""Tables of all consoles."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from experiment.report.console.wrap import fold, longest_word
from experiment.report.facts.texts import ASCII
from experiment.text import Translator, readable

_GAP = "  "
_INDENT = 2
_MIN_WIDTH = 8  # minimum cells of a column, unless its text is shorter
_HEIGHT = 6  # maximum lines of a folded line, about


class Table:
    """A table that fits any width of the console without cutting text.

    Columns that do not fit are folded. If a word would be broken, each row becomes a block: its
    first cell, and a line ``head: cell`` for each other cell.

    Args:
        t: translates these lines.
        heads: heads of the columns; no header if all are empty.
        right: columns of numbers.
    """

    def __init__(self, t: Translator, *heads: str, right: Container[int] = ()) -> None:
        self.heads = [_text(head, "bold") for head in heads]
        self.rows: list[list[Text]] = []
        self._t, self._right = t, right

    def add_row(self, *cells: str | Text, style: str = "") -> None:
        """Add a row; the last cell of a short row spans the remaining columns."""
        self.rows.append([_text(cell, style) for cell in cells])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        heads, *rows = [self.heads, *self.rows]
        if options.ascii_only:
            heads, *rows = [[_plain(console, cell) for cell in row] for row in (heads, *rows)]
        widths = _widths([heads, *rows], options.max_width)
        if any(head.plain for head in heads):
            yield Text()
        if widths is None:
            yield from self._blocks(heads, rows, options.max_width)
            return
        lines: list[Text] = []
        if any(head.plain for head in heads):
            lines += self._lines(heads, widths, is_head=True)
            lines.append(Text(("-" if options.ascii_only else "─") * _room(widths)))
        for row in rows:
            if len(row) == 1 < len(heads):
                lines.append(Text())
            lines += self._lines(row, widths)
        yield Text("\n").join(lines)

    def _lines(
        self, row: Sequence[Text], widths: Sequence[int], is_head: bool = False
    ) -> Iterator[Text]:
        """Lines of a row; heads are bottom-aligned."""
        rooms = [*widths[: len(row) - 1], _room(widths[len(row) - 1 :])]
        folded = [fold(cell, room) for cell, room in zip(row, rooms, strict=True)]
        height = max(map(len, folded))
        for place in range(height):
            parts: list[Text] = []
            for index, (lines, room) in enumerate(zip(folded, rooms, strict=True)):
                at = place - height + len(lines) if is_head else place
                part = lines[at] if 0 <= at < len(lines) else Text()
                is_number = index in self._right and len(row) == len(widths)
                part.align("right" if is_number or row[index].justify == "right" else "left", room)
                parts.append(part)
            line = Text(_GAP).join(parts)
            line.rstrip()
            yield line

    def _blocks(
        self, heads: Sequence[Text], rows: Sequence[Sequence[Text]], width: int
    ) -> RenderResult:
        """Rows as blocks of a title and lines, below the head of the titles."""
        yield from fold(heads[0], width)
        for title, *cells in rows:
            if not cells:
                yield Text()
            yield from fold(Text.assemble(title, style="bold"), width)
            lines: list[tuple[str, Text]] = []
            for index, cell in enumerate(cells, 1):
                head = " ".join(heads[index].plain.split()) if len(cells) + 1 == len(heads) else ""
                label = self._t("console.problem", arm=head, text="") if head else ""
                number = Text(" ").join(cell.split("\n")) if index in self._right else cell
                lines.append((label, number))
            lines = [(label, cell) for label, cell in lines if cell.plain]
            yield from _labelled(lines, width)


def _labelled(lines: Sequence[tuple[str, Text]], width: int) -> Iterator[Text]:
    """Labels with their values, which are aligned if all fit on a line."""
    longest = max((cell_len(label) for label, _ in lines), default=0)
    if any(_INDENT + longest + _length(value) > width for _, value in lines):
        longest = 0
    for label, value in lines:
        line = Text.assemble(label, " " * (longest - cell_len(label)), value)
        indent = min(_INDENT, width - longest_word(line.plain, width))
        yield from (Text(" " * indent) + part for part in fold(line, width - indent))


def _widths(rows: Sequence[Sequence[Text]], width: int) -> list[int] | None:
    """Width of each column for rows of even height; None if a word is too long."""
    count = len(rows[0])
    columns = [
        [row[index] for row in rows if index < len(row) - (len(row) < count)]
        for index in range(count)
    ]
    most = [max(map(_length, column)) for column in columns]
    least = [
        max(
            min(high, max(_MIN_WIDTH, high // _HEIGHT)),
            *(longest_word(cell.plain, width) for cell in column),
        )
        for high, column in zip(most, columns, strict=True)
    ]
    for level in range(max(1, min(max(most), width)), 0, -1):
        widths = [max(low, min(high, level)) for low, high in zip(least, most, strict=True)]
        for row in rows:
            if len(row) < count:
                last = widths[len(row) - 1 :]
                widths[-1] += max(0, longest_word(row[-1].plain, width) - _room(last))
        if _room(widths) <= width:
            return widths
    return None


def _room(widths: Sequence[int]) -> int:
    """Total width of columns."""
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _length(text: Text) -> int:
    return max(map(cell_len, text.plain.split("\n")))


def _text(cell: str | Text, style: str) -> Text:
    text = Text(readable(cell), style) if isinstance(cell, str) else cell
    text.expand_tabs(8)
    return text


def _plain(console: Console, cell: Text) -> Text:
    """Convert a cell to ASCII, which may be longer."""
    parts = Text().join([cell]).render(console)
    plain = ((part.text.translate(ASCII), part.style or "") for part in parts)
    return Text.assemble(*plain, justify=cell.justify)
