"""Live view of the block pool on the console: a sign for each block, next to three bars.

    ██▓·██░···    reserved   ████████████████  144 MiB
    ▓█··········   allocated  ███               24.75 MiB
                   live       ██                22.71 MiB

A sign shows how much of a block is written, or of several blocks of a large pool. Its colour is the
owner. The picture is redrawn at most ten times a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from experiment.events import (
    ArmStarted,
    Event,
    PoolReserved,
    RepeatFinished,
    Step,
    TurnStarted,
    WorkloadReady,
)
from experiment.record.log import cell_at
from experiment.replay.timeline import pool_shape
from experiment.text import Translator, format_bytes
from kvsim.accounting.ledger import Ledger, ReplayError

SECONDS = 0.1  # between pictures
_COLUMNS, _ROWS, _BAR, _SHORTEST = 40, 6, 18, 6
_BEFORE, _BETWEEN = 2, 3  # spaces before the pool, and between pool and bars
_COLOURS = ("blue", "yellow", "green", "magenta", "cyan", "red", "bright_blue")


@dataclass(frozen=True, slots=True)
class Signs:
    """Signs of blocks from free to full, of cached blocks, and of bars."""

    levels: str
    cached: str
    bar: str


PLAIN = Signs(".-+#", "c", "#")
BLOCKS = Signs("·░▒█", "c", "█")


class PoolView:
    """Follows the events of an arm, and draws ``picture``.

    Args:
        now: a monotonic clock in seconds.
    """

    def __init__(
        self, t: Translator, ascii_only: bool, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._t = t
        self._signs = PLAIN if ascii_only else BLOCKS
        self._now = now
        self._longest = 0
        self._bytes = 0.0
        self._cell: int | None = None
        # Pool by cell and arm.
        self._pools: dict[tuple[int | None, str], PoolReserved] = {}
        self._ledger: Ledger | None = None
        self._drawn = float("-inf")
        # The pool after the last drawn step; None without a block table.
        self.picture: RenderableType | None = None

    def see(self, event: Event) -> None:
        """Process an event; a contradictory log ends the view only."""
        self._cell = cell_at(event, self._cell)
        if isinstance(event, WorkloadReady):
            self._longest = event.max_length
        elif isinstance(event, ArmStarted):
            self.clear()
        elif isinstance(event, PoolReserved):
            self._open(event)
        elif isinstance(event, TurnStarted):
            self._reopen(self._pools.get((event.cell, event.arm)))
        elif isinstance(event, RepeatFinished) and self._ledger is not None:
            self._ledger = Ledger(self._ledger.shape)  # the next repeat begins with an empty pool
        elif isinstance(event, Step) and self._ledger is not None:
            self._take(event, self._ledger)

    def clear(self) -> None:
        """Remove the pool until the next one is reserved."""
        self._ledger, self.picture = None, None

    def _open(self, pool: PoolReserved) -> None:
        """Begin a view, unless the arm has slabs or a growing cache."""
        blocks = not pool.elastic and pool.block_size < self._longest
        if blocks:
            self._pools[self._cell, pool.arm] = pool
        self._reopen(pool if blocks else None)

    def _reopen(self, pool: PoolReserved | None) -> None:
        """View an empty pool, before each repeat."""
        self.clear()
        if pool is not None:
            self._ledger = Ledger(pool_shape(pool))
            self._bytes = pool.bytes_per_slot

    def _take(self, step: Step, ledger: Ledger) -> None:
        try:
            ledger.apply(step.plan)
        except ReplayError:
            self.clear()
            return
        now = self._now()
        if now - self._drawn >= SECONDS:
            self._drawn = now
            self.picture = PoolPicture(self._pool(ledger), self._bars(ledger), self._signs.bar)

    def _pool(self, ledger: Ledger) -> Text:
        each = -(-ledger.shape.blocks // (_COLUMNS * _ROWS))
        filled, holders = _fills(ledger)
        text = Text()
        for place, first in enumerate(range(0, ledger.shape.blocks, each)):
            if place and place % _COLUMNS == 0:
                text.append("\n")
            blocks = range(first, min(first + each, ledger.shape.blocks))
            sign = self._sign(ledger, blocks, filled)
            owner = next((holders[block] for block in blocks if block in holders), None)
            text.append(sign, "dim" if owner is None else _COLOURS[owner % len(_COLOURS)])
        return text

    def _sign(self, ledger: Ledger, blocks: range, filled: dict[int, int]) -> str:
        held = [filled[block] for block in blocks if block in filled]
        if not held:
            kept = any(block in ledger.cached for block in blocks)
            return self._signs.cached if kept else self._signs.levels[0]
        share = sum(held) / (len(blocks) * ledger.shape.block_size)
        return self._signs.levels[1 if share <= 1 / 3 else 2 if share < 1 else 3]

    def _bars(self, ledger: Ledger) -> list[tuple[str, float, str]]:
        """Name, share of the pool and size of each bar."""
        counts = ledger.counts()
        bars = [
            (name, getattr(counts, name)) for name in ("reserved", "allocated", "live", "wasted")
        ]
        return [
            (self._t(f"term.{name}.name"), slots / max(counts.reserved, 1),
             format_bytes(slots * self._bytes))
            for name, slots in bars
        ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class PoolPicture:
    """The pool with bars next to it, or below it on a narrow terminal.

    Bars are shortened first, because sizes must not be cut.
    """

    pool: Text
    rows: list[tuple[str, float, str]]
    sign: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        words = max(cell_len(name) for name, _, _ in self.rows) + 1
        words += max(cell_len(size) for _, _, size in self.rows) + 1
        room = options.max_width - _BEFORE - words
        wide = max(cell_len(line) for line in self.pool.plain.split("\n"))
        bars_room = room - wide - _BETWEEN
        if bars_room < _SHORTEST:
            yield Padding(self.pool, (0, 0, 0, _BEFORE))
            yield Padding(self._bars(room), (0, 0, 0, _BEFORE))
            return
        grid = Table.grid(padding=(0, _BETWEEN))
        grid.add_column(no_wrap=True)
        grid.add_column(no_wrap=True)
        grid.add_row(self.pool, self._bars(bars_room))
        yield Padding(grid, (0, 0, 0, _BEFORE))

    def _bars(self, room: int) -> Table:
        longest = max(0, min(_BAR, room))
        bars = Table.grid(padding=(0, 1))
        for justify in ("left", "left", "right"):
            bars.add_column(no_wrap=True, justify=justify)
        for name, share, size in self.rows:
            length = min(longest, round(share * longest) or (1 if share else 0))
            bars.add_row(name, (self.sign * length).ljust(longest), size)
        return bars


def _fills(ledger: Ledger) -> tuple[dict[int, int], dict[int, int]]:
    """Written slots of each allocated block, and one of its owners."""
    size = ledger.shape.block_size
    filled: dict[int, int] = {}
    holders: dict[int, int] = {}
    for request, holder in ledger.owners.items():
        for logical, block in enumerate(holder.table):
            here = min(max(holder.padding + holder.written - logical * size, 0), size)
            filled[block] = max(filled.get(block, 0), here)
            holders[block] = request
    return filled, holders


class TaskDisplay(Progress):
    """rich's progress line below the pool of the running arm."""

    view: PoolView | None = None

    def get_renderables(self) -> Iterable[RenderableType]:
        """The pool, if any, and the progress line."""
        if self.view is not None and self.view.picture is not None:
            yield self.view.picture
        yield from super().get_renderables()
