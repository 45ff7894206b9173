"""Waiting queues and the choice of the request to preempt."""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Literal, Protocol

from kvsim.core.group import Group

Policy = Literal["fcfs", "priority"]


class WaitingQueue(Protocol):
    """Groups that wait for their first blocks, or for blocks after a preemption."""

    def push(self, group: Group) -> None:
        """Queue a new group."""

    def push_back_in(self, group: Group) -> None:
        """Queue a preempted group."""

    def peek(self) -> Group:
        """Return the next group; the queue must not be empty."""

    def pop(self) -> Group:
        """Remove and return the next group."""

    def remove(self, group: Group) -> None:
        """Remove any group."""

    def __iter__(self) -> Iterator[Group]: ...

    def __len__(self) -> int: ...


class FcfsQueue(deque[Group]):
    """First come, first served; a preempted group goes to the front."""

    def push(self, group: Group) -> None:
        """Append the group."""
        self.append(group)

    def push_back_in(self, group: Group) -> None:
        """Prepend the group, which arrived before all that wait."""
        self.appendleft(group)

    def peek(self) -> Group:
        """Return the first group."""
        return self[0]

    def pop(self) -> Group:  # type: ignore[override]
        """Remove and return the first group."""
        return self.popleft()


class PriorityQueue:
    """Smallest priority number first, then first come, first served; kept sorted."""

    def __init__(self) -> None:
        self._queue: list[Group] = []

    def push(self, group: Group) -> None:
        """Insert the group by rank, behind equal ones."""
        bisect.insort(self._queue, group, key=lambda g: g.rank)

    push_back_in = push

    def peek(self) -> Group:
        """Return the group with the smallest rank."""
        return self._queue[0]

    def pop(self) -> Group:
        """Remove and return the group with the smallest rank."""
        return self._queue.pop(0)

    def remove(self, group: Group) -> None:
        """Remove any group."""
        self._queue.remove(group)

    def __iter__(self) -> Iterator[Group]:
        return iter(self._queue)

    def __len__(self) -> int:
        return len(self._queue)


def waiting_queue(policy: Policy) -> WaitingQueue:
    """Return an empty queue for ``policy``."""
    return PriorityQueue() if policy == "priority" else FcfsQueue()


def victim(running: Sequence[Group], policy: Policy) -> Group:
    """Return the group to preempt: the newest, or the one with the largest rank."""
    if policy == "fcfs":
        return running[-1]
    return max(running, key=lambda group: group.rank)
