"""How many requests a pool holds when more always wait: the memory half of any throughput.

    waiting   r5 r6 r7 ...     all that run get one token a step; whoever ends gives way to
    running   r1 r2 r3 r4      the next in line, if its reservation fits

Between two ends nothing changes but live slots, which grow by one a request and step, so whole
stretches are taken at once and means over time stay exact.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvsim.contiguous.reservation import ReservationPolicy, ReservationPool, reserved_slots
from kvsim.core.blocks import blocks_needed
from kvsim.core.request import final_tokens

Lengths = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class SaturatedPool:
    """Means over time of a pool before which requests always wait; slots, but for ``running``.

    Attributes:
        running: requests at a time.
        hole: free slots, none of them of use to the next request in line.
        free: other free slots.
        steps: that the means are over.
    """

    running: float
    live: float
    written_later: float
    never_written: float
    rounding: float
    hole: float
    free: float
    steps: int


class NeverSaturatedError(ValueError):
    """All requests fitted at once, so how many more would have is not known."""


def saturate(
    policy: ReservationPolicy, slots: int, max_length: int, lengths: Iterable[tuple[int, int]]
) -> SaturatedPool:
    """Serve (prompt, new) token pairs in order through a pool that reserves.

    Time counts while a request waits: filling up at the beginning is part of it (no time passes
    before the pool is full), running empty at the end is not.

    Raises:
        kvsim.contiguous.reservation.ReservationError: a request that can never be served.
        NeverSaturatedError: too few requests to fill the pool.
    """
    pool = ReservationPool(slots, policy, max_length)
    # (step at which it ends, request)
    ends: list[tuple[int, int]] = []
    sums = [0.0] * 7
    now = 0
    for request, (prompt, new) in enumerate(lengths):
        while not pool.fits(prompt, new):
            step = ends[0][0] - now
            _weigh(sums, pool, pool.asks(prompt, new), step)
            for end, running in ends:
                # A last token's slot is never written.
                pool.write(running, step - (end == now + step))
            now += step
            # All that end now leave before anyone is admitted.
            while ends and ends[0][0] == now:
                pool.release(heapq.heappop(ends)[1])
        pool.admit(request, prompt, new)
        pool.write(request, prompt)
        heapq.heappush(ends, (now + new, request))
    if not now:
        raise NeverSaturatedError(f"{len(pool)} requests never fill {slots} slots")
    count, live, later, never, rounding, hole, free = (total / now for total in sums)
    return SaturatedPool(count, live, later, never, rounding, hole, free, now)


def _weigh(sums: list[float], pool: ReservationPool, waiting: int, steps: int) -> None:
    """Add ``steps`` steps in which each running request writes one slot after another."""
    if not steps:
        return
    counts = pool.counts(waiting)
    grown = len(pool) * (steps - 1) / 2
    states = (
        len(pool),
        counts.live + grown,
        counts.written_later - grown,
        counts.never_written,
        counts.rounding,
        counts.hole,
        counts.free,
    )
    for index, state in enumerate(states):
        sums[index] += state * steps


@dataclass(frozen=True, slots=True)
class PagedDemand:
    """What a running request holds in blocks, on average over all steps of all requests.

    Attributes:
        blocks: owned; long outputs weigh more, as they are running more often.
        live: slots written.
        final_blocks: at the end, averaged over requests.
        final_live: slots written at the end.
    """

    block_size: int
    blocks: float
    live: float
    final_blocks: float
    final_live: float

    @property
    def tail_share(self) -> float:
        """Slots that are owned and not written / slots owned, over time."""
        return 1 - self.live / (self.blocks * self.block_size)


def paged_demand(lengths: Lengths, block_size: int) -> PagedDemand:
    """Blocks of a running request; closed sums, no simulation.

    Raises:
        ValueError: no lengths.
    """
    if not lengths:
        raise ValueError("no lengths to average over")
    blocks = live = steps = final_blocks = final_live = 0
    for prompt, new in lengths:
        last = final_tokens(prompt, new)
        blocks += block_sum(last, block_size) - block_sum(prompt - 1, block_size)
        live += (prompt + last) * new // 2
        steps += new
        final_blocks += blocks_needed(last, block_size)
        final_live += last
    count = len(lengths)
    return PagedDemand(
        block_size, blocks / steps, live / steps, final_blocks / count, final_live / count
    )


def block_sum(tokens: int, size: int) -> int:
    """Blocks for 1 token, for 2, ... for ``tokens``, added up."""
    full, rest = divmod(tokens, size)
    return size * full * (full + 1) // 2 + rest * (full + 1)


def reserved_mean(policy: ReservationPolicy, lengths: Lengths, max_length: int) -> float:
    """Slots that a running request asks for, on average over time, before any rounding."""
    asked = sum(reserved_slots(policy, p, n, max_length) * n for p, n in lengths)
    return asked / sum(n for _, n in lengths)
