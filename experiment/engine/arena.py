"""External fragmentation: contiguous requests in one arena on the device.

    step 7   [ 0 0 0 0 | . . . | 2 2 | . . | 3 3 3 ]    5 slots are free, the largest hole has 3:
                                                        a request for 4 waits
    step 9   [ 0 0 0 0 | . . . . . . . | 3 3 3 ]        2 has finished; now it can be placed

No model runs; a step gives each request one token. Free slots are counted from the arena's bytes,
which a request writes when it starts and clears when it ends. A request reserves its final length:
exactly (first fit), or rounded up to a power of two as the PagedAttention paper's oracle does; both
by :class:`kvsim.sim.arena.Pieces`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kvsim.core.request import final_tokens
from kvsim.sim.arena import ArenaCounts, Pieces

FREE, TAKEN = 0, 1


@dataclass(frozen=True, slots=True)
class ArenaRequest:
    """Prompt tokens, new tokens and arrival step of a request."""

    prompt: int
    new: int
    arrival: float = 0


class Arena:
    """Device memory as a row of slots, [slots, slot_bytes]."""

    def __init__(self, slots: int, slot_bytes: int, device: torch.device) -> None:
        self.memory = torch.full((slots, slot_bytes), FREE, dtype=torch.uint8, device=device)

    def write(self, start: int, slots: int, value: int) -> None:
        """Fill a span, which must hold another value.

        Raises:
            RuntimeError: it already holds ``value``: two requests share memory.
        """
        span = self.memory[start : start + slots]
        if bool((span == value).any()):
            raise RuntimeError(f"slots {start} to {start + slots} hold {value} already")
        span.fill_(value)

    def holes(self) -> tuple[int, int]:
        """Number of free slots and size of the largest hole, counted from the bytes."""
        free = (self.memory == FREE).all(1).tolist()
        largest = run = 0
        for each in free:
            run = run + 1 if each else 0
            largest = max(largest, run)
        return sum(free), largest


def run_arena(
    requests: Sequence[ArenaRequest], arena: Arena, pieces: Pieces, max_running: int
) -> ArenaCounts:
    """Serve the requests in order, at most ``max_running`` concurrently.

    Raises:
        ValueError: a request is longer than the arena.
    """
    waiting = list(requests)
    running: dict[int, tuple[int, int]] = {}  # start: (slots, tokens to generate)
    steps = refused = peak = 0
    clock = 0.0
    refusal: tuple[int, int, int, int] | None = None
    while waiting or running:
        if not running:
            clock = max(clock, waiting[0].arrival)
        blocked = _admit(waiting, running, arena, pieces, max_running, clock)
        if not running:
            raise ValueError("a request is longer than the arena")
        if blocked is not None:
            free, largest = arena.holes()
            if free >= blocked:
                refused += 1
                refusal = refusal or (steps, free, largest, blocked)
        peak = max(peak, len(running))
        for start in list(running):
            slots, left = running[start]
            running[start] = slots, left - 1
            if left == 1:
                del running[start]
                pieces.free((start, slots))
                arena.write(start, slots, FREE)
        steps, clock = steps + 1, clock + 1
    step, free_then, largest_then, needed = refusal or (None, None, None, None)
    return ArenaCounts(steps, refused, step, free_then, largest_then, needed, peak)


def _admit(
    waiting: list[ArenaRequest],
    running: dict[int, tuple[int, int]],
    arena: Arena,
    pieces: Pieces,
    max_running: int,
    clock: float,
) -> int | None:
    """Place arrived requests in order; return the slots needed by the first that does not fit."""
    while waiting and waiting[0].arrival <= clock and len(running) < max_running:
        one = waiting[0]
        needed = final_tokens(one.prompt, one.new)
        span = pieces.allocate(needed)
        if span is None:
            return needed
        start, slots = span
        arena.write(start, slots, TAKEN)
        running[start] = slots, one.new
        waiting.pop(0)
    return None
