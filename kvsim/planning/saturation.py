"""Concurrent requests of a pool with a saturated queue: the memory limit of throughput.

    waiting   r5 r6 r7 ...     each running request gets one token per step; when one ends,
    running   r1 r2 r3 r4      the next in line starts if its reservation fits

Between two ends only live slots change, by one per request and step, so whole intervals are
integrated exactly.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvsim.contiguous.reservation import ReservationPolicy, ReservationPool, reserved_slots
from kvsim.core.blocks import blocks_needed
from kvsim.core.request import final_tokens

RequestLengths = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class SaturatedPool:
    """Time-weighted means of a pool with a saturated queue; in slots, except ``running``.

    Attributes:
        running: concurrent requests.
        hole: free slots in pieces too small for the next request.
        free: other free slots.
        steps: number of steps.
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
    """All requests fitted at once, so the maximum concurrency is unknown."""


def saturate(
    policy: ReservationPolicy, slots: int, max_length: int, lengths: RequestLengths
) -> SaturatedPool:
    """Serve (prompt, new) token pairs in order from a pool with reservations.

    Only time with a waiting request counts: filling the pool takes no time, and draining it at
    the end is excluded. Requests of one length start and end together, so that the interval of
    the first ones is that of all.

    Raises:
        kvsim.contiguous.reservation.ReservationError: a request that can never be served.
        NeverSaturatedError: too few requests to fill the pool.
    """
    pool = ReservationPool(slots, policy, max_length)
    # (step at which it ends, request, its final slots)
    ends: list[tuple[int, int, int]] = []
    sums = np.zeros(7)
    now = live = 0
    is_uniform = len(set(lengths)) == 1
    for request, (prompt, new) in enumerate(lengths):
        while not pool.fits(prompt, new):
            step, count = ends[0][0] - now, len(pool)
            counts = pool.counts(live, pool.requested_slots(prompt, new))
            grown = count * (step - 1) / 2
            states = (count, live + grown, counts.written_later - grown, *counts[2:])
            sums += np.array(states) * step
            live += count * step
            now += step
            # Release all that end now before admitting.
            while ends and ends[0][0] == now:
                _, ended, final = heapq.heappop(ends)
                pool.release(ended)
                live -= final + 1  # the slot of a last token is never written
            if is_uniform:
                return _means(sums, now, intervals=(len(lengths) - 1) // request)
        pool.admit(request, prompt, new)
        live += prompt
        heapq.heappush(ends, (now + new, request, final_tokens(prompt, new)))
    if not now:
        raise NeverSaturatedError(f"{len(pool)} requests never fill {slots} slots")
    return _means(sums, now)


def _means(sums: NDArray[np.float64], steps: int, intervals: int = 1) -> SaturatedPool:
    """Divide the sums over ``steps`` steps; ``intervals``: how many such intervals there are."""
    running, in_use, later, never, rounding, hole, free = (sums / steps).tolist()
    return SaturatedPool(running, in_use, later, never, rounding, hole, free, steps * intervals)


@dataclass(frozen=True, slots=True)
class PagedDemand:
    """Blocks of a running request, averaged over all steps of all requests.

    Attributes:
        blocks: owned blocks; long outputs weigh more, since they run longer.
        live: written slots.
        final_blocks: blocks at the end, averaged over requests.
        final_live: written slots at the end.
    """

    block_size: int
    blocks: float
    live: float
    final_blocks: float
    final_live: float

    @property
    def tail_share(self) -> float:
        """Unwritten owned slots / owned slots, over time."""
        return 1 - self.live / (self.blocks * self.block_size)


def mean_over_steps(lengths: RequestLengths, at: NDArray[np.int64]) -> float:
    """Return the mean of ``at[tokens written]`` over all steps of all requests.

    Args:
        at: a value for each number of tokens from 0, [max length + 1].
    """
    up_to = np.cumsum(at)
    prompts, new = np.array(lengths).T
    return float((up_to[prompts + new - 1] - up_to[prompts - 1]).sum() / new.sum())


def paged_demand(lengths: RequestLengths, block_size: int) -> PagedDemand:
    """Compute the block demand in closed form.

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
    """Sum the blocks for 1, 2, ... ``tokens`` tokens."""
    full, rest = divmod(tokens, size)
    return size * full * (full + 1) // 2 + rest * (full + 1)


def reserved_mean(policy: ReservationPolicy, lengths: RequestLengths, max_length: int) -> float:
    """Return the time-weighted mean of reserved slots before rounding."""
    requested = sum(reserved_slots(policy, p, n, max_length) * n for p, n in lengths)
    return requested / sum(n for _, n in lengths)
