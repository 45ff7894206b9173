"""Fragmentation of one contiguous arena: when a request does not fit although enough is free.

    pieces    [ 0 0 0 0 ]       [ 2 2 ]     [ 3 3 3 ]     sorted; each as long as allocated
    holes                 4 5 6         9 10              5 slots are free, 3 contiguous
    ends      a heap of (step, piece): a request ends after the step of its last token

Requests are placed in order of arrival, and none overtakes. A step gives each request one token,
whatever its prompt length. ``first_fit`` takes the first large enough hole; ``buddy`` rounds up to
a power of two (:mod:`kvsim.contiguous.buddy`).
"""

from __future__ import annotations

import bisect
import heapq
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from kvsim.contiguous.buddy import BuddyAllocator
from kvsim.core.request import final_tokens
from kvsim.sim.config import SimulationError
from kvsim.traces.types import NANOSECONDS, TraceRequest

Fit = Literal["first_fit", "buddy"]
FITS: tuple[Fit, ...] = get_args(Fit)


@dataclass(frozen=True, slots=True)
class ArenaCounts:
    """Result of a replay, in steps and slots.

    Attributes:
        steps: until all requests had ended, without idle time.
        refused_steps: steps in which the next request waited although enough slots were free.
        first_step: the first of these; None: none. ``free``, ``largest`` and ``needed`` are the
            free slots, the largest hole and the requested slots at that step.
        running_peak: most concurrent requests.
    """

    steps: int
    refused_steps: int
    first_step: int | None
    free: int | None
    largest: int | None
    needed: int | None
    running_peak: int


class Pieces:
    """Allocated pieces of ``slots``, and allocation by one of two rules."""

    def __init__(self, slots: int, fit: Fit) -> None:
        self.slots = slots
        self._pieces: list[tuple[int, int]] = []  # (start, slots), sorted
        self._buddy = BuddyAllocator(slots) if fit == "buddy" else None

    def __len__(self) -> int:
        return len(self._pieces)

    @property
    def holes(self) -> list[tuple[int, int]]:
        """Free ranges as (start, slots), adjacent ones merged."""
        ends = [0, *(start + slots for start, slots in self._pieces)]
        begins = [*(start for start, _ in self._pieces), self.slots]
        return [(end, begin - end) for end, begin in zip(ends, begins, strict=True) if begin > end]

    def allocate(self, slots: int) -> tuple[int, int] | None:
        """Allocate a piece of at least ``slots`` slots; None if no hole is large enough."""
        if self._buddy is None:
            start = next((start for start, size in self.holes if size >= slots), None)
        elif self._buddy.fits(slots):
            piece = self._buddy.allocate(slots)
            start, slots = piece.start, piece.size
        else:
            start = None
        if start is None:
            return None
        bisect.insort(self._pieces, (start, slots))
        return start, slots

    def free(self, piece: tuple[int, int]) -> None:
        """Free a piece."""
        self._pieces.remove(piece)
        if self._buddy is not None:
            self._buddy.free(piece[0])


def replay_arena(
    requests: Iterable[TraceRequest], slots: int, max_running: int, fit: Fit = "first_fit"
) -> ArenaCounts:
    """Serve requests in order of arrival.

    Args:
        requests: one second of their clock is one step.
        slots: slots of the arena.
        max_running: most concurrent requests.
        fit: how a hole is selected.

    Raises:
        SimulationError: ``nothing_fits``: a request exceeds the empty arena.
    """
    pending, arena = deque(requests), Pieces(slots, fit)
    ends: list[tuple[int, tuple[int, int]]] = []
    refused: list[tuple[int, int, int, int]] = []  # step, free, largest hole, asked for
    step = peak = 0
    late = 0.0  # lead of the arrival clock over the steps: idle time has no steps
    while pending or ends:
        if not ends:
            late = max(late, pending[0].arrival_ns / NANOSECONDS - step)
        needed_slots = None
        while (
            pending
            and pending[0].arrival_ns / NANOSECONDS <= step + late
            and len(arena) < max_running
        ):
            request = pending[0]
            needed_slots = final_tokens(request.prompt_tokens, request.output_tokens)
            piece = arena.allocate(needed_slots)
            if piece is None:
                break
            needed_slots = None
            heapq.heappush(ends, (step + request.output_tokens, piece))
            pending.popleft()
        if not ends:
            params = {"requests": len(pending), "needed": needed_slots, "available": slots}
            raise SimulationError("nothing_fits", reason="slots", **params)
        sizes = [size for _, size in arena.holes]
        if needed_slots is not None and sum(sizes) >= needed_slots:
            refused.append((step, sum(sizes), max(sizes), needed_slots))
        peak, step = max(peak, len(arena)), step + 1
        while ends and ends[0][0] == step:
            arena.free(heapq.heappop(ends)[1])
    first, free, largest, needed = refused[0] if refused else (None, None, None, None)
    return ArenaCounts(step, len(refused), first, free, largest, needed, peak)
