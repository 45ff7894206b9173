"""Slot map: the pool of each arm at its peak, slot by slot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from experiment.replay.timeline import PoolSnapshot
from experiment.report.facts.bilingual import Bilingual
from experiment.report.html.charts import Width, both_widths
from experiment.report.html.svg import boxes, drawing, fill, text
from experiment.text.messages import arm_message, message
from kvsim.accounting.ledger import Owner, SlotState
from kvsim.accounting.slots import ALLOCATED_STATES, OTHER_STATES

_ROW = 20
_MAX_ROWS = 24
_MAX_PIECES = 6000
# Owners are written in blocks with enough space: pixels of a digit, of the margin, and the minimum.
_SIGN, _AROUND, _LEAST = 7, 6, 18


@dataclass(frozen=True, slots=True)
class Piece:
    """Adjacent slots of one block in one state."""

    start: int
    count: int
    state: SlotState
    request: int | None


@dataclass(frozen=True, slots=True)
class MapOf:
    """The pool of one arm for drawing, with ``row`` slots per row.

    ``shared``: number of owners of each shared block.
    """

    arm: str
    pieces: tuple[Piece, ...]
    block_size: int
    row: int
    slots: int
    shared: Mapping[int, int]

    @property
    def rows(self) -> int:
        """Rows of the whole pool."""
        return -(-self.slots // self.row)

    @property
    def hidden_slots(self) -> int:
        """Number of slots that are not drawn because the pool is too large."""
        return max(0, self.slots - _MAX_ROWS * self.row)


def map_of(arm: str, snapshot: PoolSnapshot, max_length: int) -> MapOf | None:
    """Arrange the pool in rows of about the maximum length; None if there are too many pieces."""
    shape = snapshot.shape
    row = max(1, -(-max_length // shape.block_size)) * shape.block_size
    pieces = merge(_pieces(snapshot))
    slots = max((piece.start + piece.count for piece in pieces), default=0)
    if not slots or len(pieces) > _MAX_PIECES:
        return None
    owners = Counter(block for holder in snapshot.holders.values() for block in holder.table)
    shared = {block: count for block, count in owners.items() if count > 1}
    return MapOf(arm, tuple(pieces), shape.block_size, row, slots, shared)


def _pieces(snapshot: PoolSnapshot) -> list[Piece]:
    """All slots of the pool in order, as pieces of one state."""
    owned: dict[int, list[Piece]] = {}
    size = snapshot.shape.block_size
    for request, holder in snapshot.holders.items():
        for logical, block in enumerate(holder.table):
            # A growing cache has no pool; it is drawn in the order of its tokens.
            place = len(owned) if snapshot.shape.elastic else block
            owned[place] = _block(holder, request, (logical, place), size)
    blocks = len(owned) if snapshot.shape.elastic else snapshot.shape.blocks
    pieces: list[Piece] = []
    at = 0
    for block in [*sorted({*owned, *snapshot.cached}), blocks]:
        engine = min(max(at, snapshot.shape.engine_blocks), block)
        pieces += _unowned(at, engine, size, SlotState.ENGINE)
        pieces += _unowned(engine, block, size, SlotState.FREE)
        if block < blocks:
            pieces += owned.get(block) or _unowned(block, block + 1, size, SlotState.CACHED)
        at = block + 1
    return pieces


def _unowned(first: int, end: int, size: int, state: SlotState) -> list[Piece]:
    return [Piece(first * size, (end - first) * size, state, None)] if first < end else []


def _block(holder: Owner, request: int, place: tuple[int, int], size: int) -> list[Piece]:
    logical, block = place
    before = logical * size
    padded = min(max(holder.padding - before, 0), size)
    filled = min(max(holder.padding + holder.written - before, 0), size)
    if holder.finished:
        runs = [(padded, SlotState.PADDING), (size - padded, SlotState.FINISHED)]
    else:
        runs = [
            (padded, SlotState.PADDING),
            (filled - padded, SlotState.LIVE),
            (size - filled, SlotState.UNWRITTEN),
        ]
    pieces: list[Piece] = []
    start = block * size
    for count, state in runs:
        if count:
            pieces.append(Piece(start, count, state, request))
        start += count
    return pieces


def merge(pieces: Sequence[Piece]) -> list[Piece]:
    """Merge adjacent free pieces, and pieces of one request if blocks have one slot."""
    joined: list[Piece] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        same = last and (last.state, last.request) == (piece.state, piece.request)
        if last and same and last.start + last.count == piece.start:
            joined[-1] = Piece(last.start, last.count + piece.count, last.state, last.request)
        else:
            joined.append(piece)
    return joined


def states_of(maps: Sequence[MapOf]) -> list[str]:
    """States in any of the maps, in the order of the ledger."""
    painted = {piece.state for one in maps for piece in one.pieces}
    return [state.value for state in (*ALLOCATED_STATES, *OTHER_STATES) if state in painted]


def slot_map(b: Bilingual, maps: Sequence[MapOf]) -> Markup:
    """Draw the pools of all arms at their peaks, at one scale."""
    return both_widths(lambda width: _slot_map(b, maps, width))


def _slot_map(b: Bilingual, maps: Sequence[MapOf], width: Width) -> Markup:
    widest = max((one.row for one in maps), default=1)
    unit = width.pixels / widest
    parts: list[Markup] = []
    y = 14.0
    for one in maps:
        parts.append(text(b, 0, y, arm_message(one.arm), class_="t strong"))
        y += 8
        parts += _pieces_drawn(one, y, unit)
        drawn = min(one.rows, _MAX_ROWS)
        parts += _rulings(b, one, y, unit)
        y += drawn * _ROW
        if one.hidden_slots:
            note = message("chart.map.hidden", n=one.hidden_slots)
            parts.append(text(b, 0, y + 12, note, class_="t small soft"))
            y += 16
        y += 30
    return drawing(
        b, f"map-{width.name}", (width.pixels, y - 22), message("chart.map.title"),
        message("chart.map.desc"), parts, table="peak-data", class_=f"chart map {width.name}",
    )  # fmt: skip


Box = tuple[float, float, float, float]


def _pieces_drawn(one: MapOf, y: float, unit: float) -> list[Markup]:
    """All pieces, with one path per state."""
    by_state: dict[SlotState, list[Box]] = {}
    for piece in one.pieces:
        by_state.setdefault(piece.state, []).extend(_cut(one, piece, y, unit))
    return [
        boxes(each, fill=fill(state), class_="edge" if state is SlotState.FREE else None)
        for state, each in by_state.items()
    ]


def _cut(one: MapOf, piece: Piece, y: float, unit: float) -> list[Box]:
    """Split a piece at the ends of rows."""
    boxes: list[Box] = []
    start, end = piece.start, piece.start + piece.count
    while start < end and start // one.row < _MAX_ROWS:
        row, column = divmod(start, one.row)
        count = min(end - start, one.row - column)
        boxes.append((column * unit, y + row * _ROW, count * unit, _ROW - 3))
        start += count
    return boxes


def _rulings(b: Bilingual, one: MapOf, y: float, unit: float) -> list[Markup]:
    """Edges of allocated blocks, and their owners if there is enough space."""
    frames: dict[int, tuple[int, int]] = {}
    for piece in one.pieces:
        if piece.request is not None:
            if one.block_size == 1:
                frames[piece.start] = (piece.request, piece.count)
                continue
            size = one.block_size
            for start in range(piece.start // size * size, piece.start + piece.count, size):
                frames[start] = (piece.request, size)
    parts: list[Markup] = []
    edges: list[Box] = []
    for start, (request, size) in frames.items():
        row, column = divmod(start, one.row)
        if row >= _MAX_ROWS:
            continue
        x, top, span = column * unit, y + row * _ROW, min(size, one.row - column) * unit
        if span > 3:
            edges.append((x, top, span, _ROW - 3))
        label = _owner(one, start // one.block_size, request)
        if span > max(_LEAST, _SIGN * len(label) + _AROUND):
            middle = x + (span / 2 if span < 120 else 14)
            parts.append(text(b, middle, top + 12.5, label, class_="t small halo middle num"))
    return [boxes(edges, class_="frame"), *parts]


def _owner(one: MapOf, block: int, request: int) -> str:
    """Text of a block: its owner, or the number of owners.

    Blocks of one slot are drawn as the pieces of a request.
    """
    shared = one.block_size > 1 and block in one.shared
    return f"×{one.shared[block]}" if shared else str(request)
