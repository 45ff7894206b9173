"""Clock of request arrivals: steps, or wall time.

    steps   0   1   2 ─ idle ─ 7   8      each executed step advances the clock by one; when idle,
            │   │   │          │   │      it advances to the next arrival
    wall    seconds of the arm's clock, which is paused during measurements

The virtual clock has the rules of :mod:`kvsim.sim.simulator` with steps of one second.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

from experiment.events import WorkloadRequest

T = TypeVar("T")

# Maximum sleep: the arm's clock may have been paused meanwhile.
_NAP_S = 0.05


class ArrivalClock:
    """Determine which requests have arrived. Create it when generation begins.

    Args:
        now: nanoseconds of the arm's clock.
        wall: whether requests arrive by that clock; otherwise by steps.
    """

    def __init__(self, now: Callable[[], int], wall: bool) -> None:
        self._arm_now = now
        self._wall = wall
        self._began = now()
        self._steps = 0.0
        self._history = [(0.0, self._began)]  # virtual clock, and when it was reached

    @property
    def now(self) -> float:
        """Steps or seconds since the beginning."""
        return (self._arm_now() - self._began) / 1e9 if self._wall else self._steps

    def tick(self) -> None:
        """Count an executed step."""
        self._advance_to(self._steps + 1)

    def arrived(self, request: WorkloadRequest) -> bool:
        """Whether the request has arrived."""
        return request.arrival <= self.now

    def wait_for(self, request: WorkloadRequest) -> None:
        """Block until the request arrives."""
        if not self._wall:
            self._advance_to(max(self._steps, request.arrival))
        while not self.arrived(request):
            time.sleep(min(_NAP_S, max(0.0, request.arrival - self.now)))

    def admit(
        self, coming: deque[T], request_of: Callable[[T], WorkloadRequest], idle: bool
    ) -> Iterator[tuple[T, int]]:
        """Yield arrived entries of the queue, each with its :meth:`moment`.

        Args:
            coming: entries that have not been yielded, in order of arrival.
            request_of: returns the request whose arrival applies to an entry.
            idle: no request is unfinished; block until the next arrival.
        """
        if coming and idle:
            self.wait_for(request_of(coming[0]))
        while coming and self.arrived(request_of(coming[0])):
            one = coming.popleft()
            yield one, self.moment(request_of(one))

    def moment(self, request: WorkloadRequest) -> int:
        """Time of an arrived request's arrival on the arm's clock, in nanoseconds."""
        if self._wall:
            return self._began + round(request.arrival * 1e9)
        return self._history[bisect_left(self._history, (request.arrival, 0))][1]

    def _advance_to(self, steps: float) -> None:
        self._steps = steps
        self._history.append((steps, self._arm_now()))
