"""Latency of a closed loop: each user submits the next request when the last one has ended.

    user 0   0 ──────────┐ 3 ────────────────┐      requests in order of their ids: one is submitted
    user 1   1 ─────┐ 2 ────────────┐ 4 ──── ...    whenever one of the run ends
                    └─ latency of 2 ┘               waiting for memory or for a row included

All requests are there from the beginning, so an arm that holds fewer than there are users queues
the others; times from a request's start exclude that.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

from experiment.experiments.measured import Measured


def at_a_time(m: Measured) -> int:
    """Users of the cell: its concurrency limit, even if memory holds fewer."""
    return m.config.engine.max_num_seqs


def most_at_a_time(m: Measured) -> int:
    """The most users of any cell, for arms that run the same in every cell."""
    return max((int(value) for value in m.config.experiment.values), default=1)


def loop_latencies(m: Measured, users: int) -> list[float]:
    """Seconds from submission to end of each request, ordered by id."""
    ends = sorted(request.latency_s for request in m.requests)
    submitted = [0.0] * min(users, len(ends)) + ends
    in_order = sorted(m.requests, key=lambda request: request.request)
    return [one.latency_s - at for one, at in zip(in_order, submitted, strict=False)]


def loop_latency(users: Callable[[Measured], int]) -> Callable[[Measured], float | None]:
    """Mean latency in seconds; None if requests have arrival times, which is no closed loop."""

    def mean(m: Measured) -> float | None:
        known = loop_latencies(m, users(m))
        return fmean(known) if known and not m.config.workload.arrivals else None

    return mean
