"""Form batches of arrived requests: in order, or as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile

from experiment.events import WorkloadRequest
from experiment.workload.arrival_clock import ArrivalClock
from kvsim.core.request import final_tokens

# A batch, and the number of waiting requests.
Batch = tuple[Sequence[WorkloadRequest], int]
Batches = Callable[[ArrivalClock], Iterator[Batch]]


def ordered_batches(
    parts: Sequence[Sequence[WorkloadRequest]], clock: ArrivalClock
) -> Iterator[Batch]:
    """Yield one part after another, each when it has arrived and the previous one has ended."""
    for index, part in enumerate(parts):
        clock.wait_for(part[-1])
        waiting = sum(clock.arrived(one) for later in parts[index + 1 :] for one in later)
        yield part, waiting


def arrived_batches(
    requests: Sequence[WorkloadRequest], rows: int, max_length: int, clock: ArrivalClock
) -> Iterator[Batch]:
    """Yield batches of requests that have arrived when the previous batch ends, at most ``rows``.

    Padded to the longest prompt, all rows of a batch stay within ``max_length``.
    """
    queue = list(requests)
    while queue:
        clock.wait_for(queue[0])
        arrived = list(takewhile(clock.arrived, queue[:rows]))
        batch = arrived[: count_fitting(arrived, rows, max_length)]
        del queue[: len(batch)]
        yield batch, sum(map(clock.arrived, queue))


def count_fitting(requests: Sequence[WorkloadRequest], rows: int, max_length: int) -> int:
    """How many of the first ``rows`` requests fit into one padded batch of ``max_length``."""
    longest = last = 0
    for count, one in enumerate(requests[:rows]):
        longest, last = max(longest, len(one.token_ids)), max(last, one.max_new_tokens)
        if final_tokens(longest, last) > max_length:
            return count
    return min(rows, len(requests))
