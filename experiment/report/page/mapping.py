"""Diagram of a token's slot: sequence, block table, pool."""

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
# Between the text above a row and the row, with space for an arrowhead.
_HEADING_GAP = 14
_HEADING = "t small soft halo"


@dataclass(frozen=True, slots=True)
class Window:
    """The drawn part of a row of blocks: ``first`` to ``last``, ``cell`` pixels each."""

    first: int
    last: int
    cell: float

    def x(self, index: int) -> float:
        """Left edge of a block."""
        return 1 + (index - self.first) * self.cell

    @property
    def blocks(self) -> range:
        """Drawn indices."""
        return range(self.first, self.last)


def _words(key: str, at: Mapping[str, int]) -> Message:
    """A text of the diagram with the numbers of the example."""
    return message(f"chart.mapping.{key}", **at)


def mapping_figure(b: Bilingual, mapping: Mapping[str, int], snapshot: PoolSnapshot) -> Markup:
    """Draw the mapping of one token; the snapshot must contain its request."""
    return both_widths(lambda width: _figure(b, mapping, snapshot, width))


def _figure(b: Bilingual, at: Mapping[str, int], snapshot: PoolSnapshot, width: Width) -> Markup:
    table = snapshot.holders[at["request"]].table
    logical = _window(at["logical"], len(table), 5 if width.narrow else 9, width.pixels)
    pool = _window(at["physical"], snapshot.shape.blocks, 12 if width.narrow else 30, width.pixels)
    # Arrows first, below the text.
    parts = [
        _arrow(_target(logical, at["logical"], at, snapshot), _SEQUENCE_Y + _HEIGHT, _TABLE_Y - 2,
               logical.x(at["logical"]) + logical.cell / 2),
        _arrow(logical.x(at["logical"]) + logical.cell / 2, _TABLE_Y + _HEIGHT, _POOL_Y - 2,
               _target(pool, at["physical"], at, snapshot)),
        *_sequence(b, at, snapshot, logical),
        *_table(b, at, snapshot, logical),
        *_pool(b, at, snapshot, pool),
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


def _target(window: Window, block: int, at: Mapping[str, int], snapshot: PoolSnapshot) -> float:
    """Centre of the token's slot in a block."""
    return window.x(block) + (at["offset"] + 0.5) / snapshot.shape.block_size * window.cell


def _sequence(
    b: Bilingual, at: Mapping[str, int], snapshot: PoolSnapshot, window: Window
) -> list[Markup]:
    """The request's slots in logical order; written ones are filled."""
    size, holder = snapshot.shape.block_size, snapshot.holders[at["request"]]
    parts = [text(b, 0, _SEQUENCE_Y - 9, _words("sequence", at), class_=_HEADING)]
    for block in window.blocks:
        x = window.x(block)
        written = min(max(holder.padding + holder.written - block * size, 0), size)
        share = written / size * window.cell
        parts.append(rect(x, _SEQUENCE_Y, share, _HEIGHT, fill=fill("live")))
        rest = fill("unwritten")
        parts.append(rect(x + share, _SEQUENCE_Y, window.cell - share, _HEIGHT, fill=rest))
        if size <= 32 and window.cell / size > 2.5:
            edges = (x + window.cell * slot / size for slot in range(1, size))
            top, bottom = _SEQUENCE_Y, _SEQUENCE_Y + _HEIGHT
            parts += [line(edge, top, edge, bottom, class_="slot-line") for edge in edges]
        parts.append(rect(x, _SEQUENCE_Y, window.cell, _HEIGHT, class_="frame"))
    slot = window.cell / size
    start = window.x(at["logical"]) + at["offset"] * slot
    parts.append(rect(start, _SEQUENCE_Y - 3, max(slot, 3), _HEIGHT + 6, class_="chosen"))
    right = start > (window.last - window.first) * window.cell * 0.7
    anchor = "t small strong end halo" if right else "t small strong halo"
    label, x = _words("token", at), start + (-6 if right else 12)
    parts.append(text(b, x, _SEQUENCE_Y + _HEIGHT + 17, label, class_=anchor))
    return parts


def _table(
    b: Bilingual, at: Mapping[str, int], snapshot: PoolSnapshot, window: Window
) -> list[Markup]:
    """Each logical block with its physical block."""
    parts = [text(b, 0, _TABLE_Y - _HEADING_GAP, _words("table", at), class_=_HEADING)]
    for block in window.blocks:
        chosen = block == at["logical"]
        x, middle = window.x(block), window.x(block) + window.cell / 2
        style = "cell chosen-cell" if chosen else "cell"
        parts.append(rect(x, _TABLE_Y, window.cell, _HEIGHT, class_=style))
        style = "t num middle strong" if chosen else "t num middle"
        entry = f"{block} → {snapshot.holders[at['request']].table[block]}"
        parts.append(text(b, middle, _TABLE_Y + 17.5, entry, class_=style))
    return parts


def _pool(
    b: Bilingual, at: Mapping[str, int], snapshot: PoolSnapshot, window: Window
) -> list[Markup]:
    """Part of the pool: the request's blocks, other requests' blocks, free blocks."""
    own = set(snapshot.holders[at["request"]].table)
    others = {block for holder in snapshot.holders.values() for block in holder.table} - own
    parts = [text(b, 0, _POOL_Y - _HEADING_GAP, message("chart.mapping.pool"), class_=_HEADING)]
    for block in window.blocks:
        paint = "live" if block in own else "allocated" if block in others else "free"
        x = window.x(block)
        parts.append(rect(x, _POOL_Y, window.cell, _HEIGHT, fill=fill(paint)))
        parts.append(rect(x, _POOL_Y, window.cell, _HEIGHT, class_="frame"))
        # A tick, except at the block of the token.
        style = "num strong" if block == at["physical"] else "num soft tick"
        middle, y = x + window.cell / 2, _POOL_Y + _HEIGHT + 15.0
        parts.append(text(b, middle, y, str(block), class_=f"t small middle {style}"))
    slot = window.cell / snapshot.shape.block_size
    start = window.x(at["physical"]) + at["offset"] * slot
    parts.append(rect(start, _POOL_Y - 3, max(slot, 3), _HEIGHT + 6, class_="chosen"))
    return parts


def _arrow(x1: float, y1: float, y2: float, x2: float) -> Markup:
    """An arrow from one row to the next."""
    bend = (y1 + y2) / 2
    shaft = f"M{x1:.1f} {y1 + 3:.1f}V{bend:.1f}H{x2:.1f}V{y2 - 7:.1f}"
    head = f"M{x2 - 4:.1f} {y2 - 9:.1f}H{x2 + 4:.1f}L{x2:.1f} {y2 - 2:.1f}Z"
    return tag("path", d=shaft, class_="arrow") + tag("path", d=head, class_="arrow-head")
