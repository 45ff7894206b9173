"""When requests arrive: on a clock of steps, or on the wall clock.

    steps   0   1   2 ─ idle ─ 7   8      a step that computes something takes one; while nobody
            │   │   │          │   │      is there, the clock goes on to the next arrival
    wall    seconds of the arm's clock, which stands still while the arm is measured

The rules of the virtual clock are those of :mod:`kvsim.simulator` with steps of a second.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence

from experiment.arms.base import ArmRun
from experiment.events import WorkloadRequest
from kvsim.geometry import final_tokens

# A batch, and how many wait beside it.
Batch = tuple[Sequence[WorkloadRequest], int]
# Sleep no longer than this at a time: the arm's clock may have stood still meanwhile.
_NAP_S = 0.05


class ArrivalClock:
    """Who has arrived by now. Made when the generation begins."""

    def __init__(self, run: ArmRun) -> None:
        self._run = run
        self._wall = run.task.config.workload.timed
        self._began = run.now()
        self._steps = 0.0
        self._passed = [(0.0, self._began)]  # what the virtual clock showed, and when

    @property
    def now(self) -> float:
        """Steps or seconds since the beginning."""
        return (self._run.now() - self._began) / 1e9 if self._wall else self._steps

    def tick(self) -> None:
        """A step has computed something."""
        self._pass_to(self._steps + 1)

    def arrived(self, request: WorkloadRequest) -> bool:
        """Whether it is there."""
        return request.arrival <= self.now

    def wait_for(self, request: WorkloadRequest) -> None:
        """Be idle until it arrives."""
        if not self._wall:
            self._pass_to(max(self._steps, request.arrival))
        while not self.arrived(request):
            time.sleep(min(_NAP_S, max(0.0, request.arrival - self.now)))

    def moment(self, request: WorkloadRequest) -> int:
        """Its arrival on the arm's clock, in nanoseconds; it has arrived."""
        if self._wall:
            return self._began + round(request.arrival * 1e9)
        return self._passed[bisect_left(self._passed, (request.arrival, 0))][1]

    def _pass_to(self, steps: float) -> None:
        self._steps = steps
        self._passed.append((steps, self._run.now()))


Batches = Callable[[ArrivalClock], Iterator[Batch]]


def in_order(parts: Sequence[Sequence[WorkloadRequest]], clock: ArrivalClock) -> Iterator[Batch]:
    """One part after another, each as soon as it is there and the one before has ended."""
    for index, part in enumerate(parts):
        clock.wait_for(part[-1])
        waiting = sum(clock.arrived(one) for later in parts[index + 1 :] for one in later)
        yield part, waiting


def as_they_come(
    requests: Sequence[WorkloadRequest], rows: int, max_length: int, clock: ArrivalClock
) -> Iterator[Batch]:
    """Batches of who is there when the one before has ended, at most ``rows`` of them.

    Padded to the longest prompt, all rows must stay within ``max_length``.
    """
    queue = list(requests)
    while queue:
        clock.wait_for(queue[0])
        batch: list[WorkloadRequest] = []
        while len(batch) < min(rows, len(queue)) and clock.arrived(queue[len(batch)]):
            wider = [*batch, queue[len(batch)]]
            longest = max(len(one.token_ids) for one in wider)
            if final_tokens(longest, max(one.max_new_tokens for one in wider)) > max_length:
                break
            batch = wider
        del queue[: len(batch)]
        yield batch, sum(map(clock.arrived, queue))
