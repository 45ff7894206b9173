"""Orders of service: who is admitted next, and who gives way when blocks run out."""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Literal, Protocol

from kvsim.core.group import Group

Policy = Literal["fcfs", "priority"]


class WaitingQueue(Protocol):
    """Requests, and beam searches as a whole, that wait for their first or next blocks."""

    def push(self, group: Group) -> None:
        """Queue a request that has just come."""

    def push_back_in(self, group: Group) -> None:
        """Queue a request that ran before and was preempted."""

    def peek(self) -> Group:
        """Return the next one; the queue must not be empty."""

    def pop(self) -> Group:
        """Take the next one out."""

    def remove(self, group: Group) -> None:
        """Take any one out."""

    def __iter__(self) -> Iterator[Group]: ...

    def __len__(self) -> int: ...


class FcfsQueue(deque[Group]):
    """First come, first served; a preempted request goes to the front.

    A deque, so that asking whether anybody waits, at every step, costs nothing.
    """

    def push(self, group: Group) -> None:
        """Queue at the end."""
        self.append(group)

    def push_back_in(self, group: Group) -> None:
        """Queue at the front: it came before all who wait."""
        self.appendleft(group)

    def peek(self) -> Group:
        """Return the first."""
        return self[0]

    def pop(self) -> Group:  # type: ignore[override]
        """Take the first out."""
        return self.popleft()


class PriorityQueue:
    """Smallest priority number first, then first come, first served; kept sorted."""

    def __init__(self) -> None:
        self._queue: list[Group] = []

    def push(self, group: Group) -> None:
        """Queue behind its equals."""
        bisect.insort(self._queue, group, key=lambda g: g.rank)

    push_back_in = push

    def peek(self) -> Group:
        """Return the most urgent."""
        return self._queue[0]

    def pop(self) -> Group:
        """Take the most urgent out."""
        return self._queue.pop(0)

    def remove(self, group: Group) -> None:
        """Take any one out."""
        self._queue.remove(group)

    def __iter__(self) -> Iterator[Group]:
        return iter(self._queue)

    def __len__(self) -> int:
        return len(self._queue)


def waiting_queue(policy: Policy) -> WaitingQueue:
    """The queue of a policy."""
    return PriorityQueue() if policy == "priority" else FcfsQueue()


def victim(running: Sequence[Group], policy: Policy) -> Group:
    """Who gives way: the newest, or the least urgent and among those the newest."""
    if policy == "fcfs":
        return running[-1]
    return max(running, key=lambda group: group.rank)
