"""Events of an arm that repeats its workload: turns and repeats."""

from __future__ import annotations

from typing import Literal

from experiment.events.base import EventBase, Int, Name


class TurnAwaited(EventBase):
    """The arm waits before a measured repeat. Between processes only; never written to the log.

    The arm does not wait before its warm-up, after which everything it needs is allocated.
    """

    event: Literal["turn_awaited"] = "turn_awaited"
    arm: Name
    repeat: Int


class TurnStarted(EventBase):
    """The arm continues with this repeat; later events belong to ``cell`` (by index) again.

    Arms of one ``group`` are interleaved round-robin, so that repeats of the same number are close
    in time. The group's number is the time of its first turn. None: the arm is alone and runs its
    repeats consecutively.
    """

    event: Literal["turn"] = "turn"
    cell: Int
    arm: Name
    repeat: Int
    group: Int | None


class RepeatFinished(EventBase):
    """An arm ran the workload once; its events since the previous repeat belong to this one.

    Only in experiments. The first repeat is the warm-up; ``generate_s`` excludes pauses.
    """

    event: Literal["repeat"] = "repeat"
    arm: Name
    repeat: Int
    warm_up: bool
    generate_s: float
