"""Waiting queues and the choice of the request to preempt."""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Literal, Protocol

from kvsim.core.group import SequenceGroup

SchedulingPolicy = Literal["fcfs", "priority"]


class WaitingQueue(Protocol):
    """Groups that wait for their first blocks, or for blocks after a preemption."""

    def push(self, group: SequenceGroup) -> None:
        """Queue a new group."""

    def push_preempted(self, group: SequenceGroup) -> None:
        """Queue a preempted group."""

    def peek(self) -> SequenceGroup:
        """Return the next group; the queue must not be empty."""

    def pop(self) -> SequenceGroup:
        """Remove and return the next group."""

    def remove(self, group: SequenceGroup) -> None:
        """Remove any group."""

    def __iter__(self) -> Iterator[SequenceGroup]: ...

    def __len__(self) -> int: ...


class FcfsQueue(deque[SequenceGroup]):
    """First come, first served; a preempted group goes to the front."""

    def push(self, group: SequenceGroup) -> None:
        """Append the group."""
        self.append(group)

    def push_preempted(self, group: SequenceGroup) -> None:
        """Prepend the group, which arrived before all that wait."""
        self.appendleft(group)

    def peek(self) -> SequenceGroup:
        """Return the first group."""
        return self[0]

    def pop(self) -> SequenceGroup:  # type: ignore[override]
        """Remove and return the first group."""
        return self.popleft()


class PriorityQueue:
    """Smallest priority number first, then first come, first served; kept sorted."""

    def __init__(self) -> None:
        self._queue: list[SequenceGroup] = []

    def push(self, group: SequenceGroup) -> None:
        """Insert the group by rank, behind equal ones."""
        bisect.insort(self._queue, group, key=lambda g: g.rank)

    push_preempted = push

    def peek(self) -> SequenceGroup:
        """Return the group with the smallest rank."""
        return self._queue[0]

    def pop(self) -> SequenceGroup:
        """Remove and return the group with the smallest rank."""
        return self._queue.pop(0)

    def remove(self, group: SequenceGroup) -> None:
        """Remove any group."""
        self._queue.remove(group)

    def __iter__(self) -> Iterator[SequenceGroup]:
        return iter(self._queue)

    def __len__(self) -> int:
        return len(self._queue)


def waiting_queue(policy: SchedulingPolicy) -> WaitingQueue:
    """Return an empty queue for ``policy``."""
    return PriorityQueue() if policy == "priority" else FcfsQueue()


def victim(running: Sequence[SequenceGroup], policy: SchedulingPolicy) -> SequenceGroup:
    """Return the group to preempt: the newest, or the one with the largest rank."""
    if policy == "fcfs":
        return running[-1]
    return max(running, key=lambda group: group.rank)
