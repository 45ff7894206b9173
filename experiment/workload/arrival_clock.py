"""When requests arrive: on a clock of steps, or on the wall clock.

    steps   0   1   2 ─ idle ─ 7   8      a step that computes something takes one; while nobody
            │   │   │          │   │      is there, the clock goes on to the next arrival
    wall    seconds of the arm's clock, which stands still while the arm is measured

The rules of the virtual clock are those of :mod:`kvsim.sim.simulator` with steps of a second.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

from experiment.events import WorkloadRequest

T = TypeVar("T")

# Sleep no longer than this at a time: the arm's clock may have stood still meanwhile.
_NAP_S = 0.05


class ArrivalClock:
    """Who has arrived by now. Made when the generation begins.

    Args:
        now: nanoseconds of the arm's clock.
        wall: whether requests arrive by that clock; else by steps.
    """

    def __init__(self, now: Callable[[], int], wall: bool) -> None:
        self._arm_now = now
        self._wall = wall
        self._began = now()
        self._steps = 0.0
        self._passed = [(0.0, self._began)]  # what the virtual clock showed, and when

    @property
    def now(self) -> float:
        """Steps or seconds since the beginning."""
        return (self._arm_now() - self._began) / 1e9 if self._wall else self._steps

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

    def admit(
        self, coming: deque[T], request_of: Callable[[T], WorkloadRequest], idle: bool
    ) -> Iterator[tuple[T, int]]:
        """Take from the queue who has arrived, each with its :meth:`moment`.

        Args:
            coming: those who have not been handed over yet, in order of arrival.
            request_of: the request that says when an entry of the queue arrives.
            idle: nobody is left to be served, so that the next one is waited for.
        """
        if coming and idle:
            self.wait_for(request_of(coming[0]))
        while coming and self.arrived(request_of(coming[0])):
            one = coming.popleft()
            yield one, self.moment(request_of(one))

    def moment(self, request: WorkloadRequest) -> int:
        """Its arrival on the arm's clock, in nanoseconds; it has arrived."""
        if self._wall:
            return self._began + round(request.arrival * 1e9)
        return self._passed[bisect_left(self._passed, (request.arrival, 0))][1]

    def _pass_to(self, steps: float) -> None:
        self._steps = steps
        self._passed.append((steps, self._arm_now()))
