"""Order of the waiting groups and choice of the one to preempt.

fcfs       first come, first served; preempts the newest
priority   smallest priority number, then arrival; preempts the last in this order
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Literal

from kvsim.core.group import SequenceGroup

SchedulingPolicy = Literal["fcfs", "priority"]


def enqueue(
    waiting: list[SequenceGroup],
    group: SequenceGroup,
    policy: SchedulingPolicy,
    preempted: bool = False,
) -> None:
    """Insert ``group`` into ``waiting``, whose first one is admitted next."""
    if policy == "priority":
        bisect.insort(waiting, group, key=lambda each: each.rank)
    elif preempted:
        waiting.insert(0, group)  # it arrived before all that wait
    else:
        waiting.append(group)


def victim(running: Sequence[SequenceGroup], policy: SchedulingPolicy) -> SequenceGroup:
    """Return the group to preempt."""
    if policy == "fcfs":
        return running[-1]
    return max(running, key=lambda group: group.rank)
