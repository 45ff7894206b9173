"""The way from one token to its slot: sequence, block table, pool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from markupsafe import Markup

from experiment.replay.timeline import PoolSnapshot
from experiment.report.facts.bilingual import Bilingual
from experiment.report.html.charts import Width, both_widths
from experiment.report.html.svg import drawing, fill, line, rect, tag, text
from experiment.text.messages import Message, message

_HEIGHT = 26
_SEQUENCE_Y, _TABLE_Y, _POOL_Y = 26, 120, 214
# Between the words over a row and the row: the head of an arrow fits in.
_HEADING_GAP = 14
_HEADING = "t small soft halo"


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a row of blocks that is drawn: ``first`` to ``last``, ``cell`` pixels each."""

    first: int
    last: int
    cell: float

    def x(self, index: int) -> float:
        """Left edge of a block."""
        return 1 + (index - self.first) * self.cell

    @property
    def blocks(self) -> range:
        """Indices that are drawn."""
        return range(self.first, self.last)


def _words(key: str, at: Mapping[str, int]) -> Message:
    """A sentence of the picture with the numbers of the example."""
    return message(f"chart.mapping.{key}", **at)


def mapping_figure(b: Bilingual, mapping: Mapping[str, int], seen: PoolSnapshot) -> Markup:
    """Draw one token's way. The picture must hold its request."""
    return both_widths(lambda width: _figure(b, mapping, seen, width))


def _figure(b: Bilingual, at: Mapping[str, int], seen: PoolSnapshot, width: Width) -> Markup:
    table = seen.holders[at["request"]].table
    logical = _window(at["logical"], len(table), 5 if width.narrow else 9, width.pixels)
    pool = _window(at["physical"], seen.shape.blocks, 12 if width.narrow else 30, width.pixels)
    # Arrows first: text lies above them.
    parts = [
        _arrow(_target(logical, at["logical"], at, seen), _SEQUENCE_Y + _HEIGHT, _TABLE_Y - 2,
               logical.x(at["logical"]) + logical.cell / 2),
        _arrow(logical.x(at["logical"]) + logical.cell / 2, _TABLE_Y + _HEIGHT, _POOL_Y - 2,
               _target(pool, at["physical"], at, seen)),
        *_sequence(b, at, seen, logical),
        *_table(b, at, seen, logical),
        *_pool(b, at, seen, pool),
    ]  # fmt: skip
    return drawing(
        b, f"mapping-{width.name}", (width.pixels, _POOL_Y + _HEIGHT + 26),
        message("chart.mapping.title"),
        _words("desc", at), parts,
        table="mapping-data", class_=f"chart {width.name}",
    )  # fmt: skip


def _window(target: int, count: int, most: int, pixels: int) -> Window:
    """Up to ``most`` of ``count`` blocks around ``target``."""
    size = min(most, count)
    first = min(max(0, target - size // 2), count - size)
    return Window(first, first + size, min((pixels - 2) / size, 230.0))


def _target(window: Window, block: int, at: Mapping[str, int], seen: PoolSnapshot) -> float:
    """Middle of the token's slot inside a block."""
    return window.x(block) + (at["offset"] + 0.5) / seen.shape.block_size * window.cell


def _sequence(
    b: Bilingual, at: Mapping[str, int], seen: PoolSnapshot, window: Window
) -> list[Markup]:
    """The request's slots in logical order, the written ones filled."""
    size, holder = seen.shape.block_size, seen.holders[at["request"]]
    parts = [text(b, 0, _SEQUENCE_Y - 9, _words("sequence", at), class_=_HEADING)]
    for block in window.blocks:
        x = window.x(block)
        written = min(max(holder.padding + holder.written - block * size, 0), size)
        share = written / size * window.cell
        parts.append(rect(x, _SEQUENCE_Y, share, _HEIGHT, fill=fill("live")))
        rest = fill("unwritten")
        parts.append(rect(x + share, _SEQUENCE_Y, window.cell - share, _HEIGHT, fill=rest))
        if size <= 32 and window.cell / size > 2.5:
            parts += _slot_lines(x, _SEQUENCE_Y, window.cell, size)
        parts.append(rect(x, _SEQUENCE_Y, window.cell, _HEIGHT, class_="frame"))
    slot = window.cell / size
    start = window.x(at["logical"]) + at["offset"] * slot
    parts.append(rect(start, _SEQUENCE_Y - 3, max(slot, 3), _HEIGHT + 6, class_="chosen"))
    right = start > (window.last - window.first) * window.cell * 0.7
    anchor = "t small strong end halo" if right else "t small strong halo"
    label, x = _words("token", at), start + (-6 if right else 12)
    parts.append(text(b, x, _SEQUENCE_Y + _HEIGHT + 17, label, class_=anchor))
    return parts


def _slot_lines(x: float, y: float, cell: float, size: int) -> list[Markup]:
    return [
        line(x + cell * i / size, y, x + cell * i / size, y + _HEIGHT, class_="slot-line")
        for i in range(1, size)
    ]


def _table(b: Bilingual, at: Mapping[str, int], seen: PoolSnapshot, window: Window) -> list[Markup]:
    """Each logical block with the physical block that holds it."""
    parts = [text(b, 0, _TABLE_Y - _HEADING_GAP, _words("table", at), class_=_HEADING)]
    for block in window.blocks:
        chosen = block == at["logical"]
        x, middle = window.x(block), window.x(block) + window.cell / 2
        style = "cell chosen-cell" if chosen else "cell"
        parts.append(rect(x, _TABLE_Y, window.cell, _HEIGHT, class_=style))
        style = "t num middle strong" if chosen else "t num middle"
        entry = f"{block} → {seen.holders[at['request']].table[block]}"
        parts.append(text(b, middle, _TABLE_Y + 17.5, entry, class_=style))
    return parts


def _pool(b: Bilingual, at: Mapping[str, int], seen: PoolSnapshot, window: Window) -> list[Markup]:
    """Part of the physical pool: the request's blocks, other requests' blocks, free blocks."""
    own = set(seen.holders[at["request"]].table)
    others = {block for holder in seen.holders.values() for block in holder.table} - own
    parts = [text(b, 0, _POOL_Y - _HEADING_GAP, message("chart.mapping.pool"), class_=_HEADING)]
    for block in window.blocks:
        paint = "live" if block in own else "allocated" if block in others else "free"
        x = window.x(block)
        parts.append(rect(x, _POOL_Y, window.cell, _HEIGHT, fill=fill(paint)))
        parts.append(rect(x, _POOL_Y, window.cell, _HEIGHT, class_="frame"))
        # A mark of the axis, but for the block of the token.
        style = "num strong" if block == at["physical"] else "num soft tick"
        middle, y = x + window.cell / 2, _POOL_Y + _HEIGHT + 15.0
        parts.append(text(b, middle, y, str(block), class_=f"t small middle {style}"))
    slot = window.cell / seen.shape.block_size
    start = window.x(at["physical"]) + at["offset"] * slot
    parts.append(rect(start, _POOL_Y - 3, max(slot, 3), _HEIGHT + 6, class_="chosen"))
    return parts


def _arrow(x1: float, y1: float, y2: float, x2: float) -> Markup:
    """A bent line with a head, from one row to the next."""
    bend = (y1 + y2) / 2
    shaft = f"M{x1:.1f} {y1 + 3:.1f}V{bend:.1f}H{x2:.1f}V{y2 - 7:.1f}"
    head = f"M{x2 - 4:.1f} {y2 - 9:.1f}H{x2 + 4:.1f}L{x2:.1f} {y2 - 2:.1f}Z"
    return tag("path", d=shaft, class_="arrow") + tag("path", d=head, class_="arrow-head")
