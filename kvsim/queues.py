"""Orders of service: who is admitted next, and who gives way when blocks run out."""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Literal, Protocol

from kvsim.request import Request

Policy = Literal["fcfs", "priority"]


class WaitingQueue(Protocol):
    """Requests that wait for their first or next blocks."""

    def push(self, request: Request) -> None:
        """Queue a request that has just come."""

    def push_back_in(self, request: Request) -> None:
        """Queue a request that ran before and was preempted."""

    def peek(self) -> Request:
        """Return the next one; the queue must not be empty."""

    def pop(self) -> Request:
        """Take the next one out."""

    def remove(self, request: Request) -> None:
        """Take any one out."""

    def __iter__(self) -> Iterator[Request]: ...

    def __len__(self) -> int: ...


class FcfsQueue:
    """First come, first served; a preempted request goes to the front."""

    def __init__(self) -> None:
        self._queue: deque[Request] = deque()

    def push(self, request: Request) -> None:
        """Queue at the end."""
        self._queue.append(request)

    def push_back_in(self, request: Request) -> None:
        """Queue at the front: it came before all who wait."""
        self._queue.appendleft(request)

    def peek(self) -> Request:
        """Return the first."""
        return self._queue[0]

    def pop(self) -> Request:
        """Take the first out."""
        return self._queue.popleft()

    def remove(self, request: Request) -> None:
        """Take any one out."""
        self._queue.remove(request)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._queue)

    def __len__(self) -> int:
        return len(self._queue)


class PriorityQueue:
    """Smallest priority number first, then first come, first served; kept sorted."""

    def __init__(self) -> None:
        self._queue: list[Request] = []

    def push(self, request: Request) -> None:
        """Queue behind its equals."""
        bisect.insort(self._queue, request, key=lambda r: r.rank)

    push_back_in = push

    def peek(self) -> Request:
        """Return the most urgent."""
        return self._queue[0]

    def pop(self) -> Request:
        """Take the most urgent out."""
        return self._queue.pop(0)

    def remove(self, request: Request) -> None:
        """Take any one out."""
        self._queue.remove(request)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._queue)

    def __len__(self) -> int:
        return len(self._queue)


def waiting_queue(policy: Policy) -> WaitingQueue:
    """The queue of a policy."""
    return PriorityQueue() if policy == "priority" else FcfsQueue()


def victim(running: Sequence[Request], policy: Policy) -> Request:
    """Who gives way: the newest, or the least urgent and among those the newest."""
    if policy == "fcfs":
        return running[-1]
    return max(running, key=lambda request: request.rank)
