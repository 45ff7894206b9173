"""Events of an arm that runs its workload again and again: whose turn it is, and what was done."""

from __future__ import annotations

from typing import Literal

from experiment.events.base import EventBase, Int, Name


class TurnAwaited(EventBase):
    """The arm stands still before a measured repeat. Between processes only; never written down.

    The warm-up waits for nobody: behind it the arm has everything that it will need.
    """

    event: Literal["turn_awaited"] = "turn_awaited"
    arm: Name
    repeat: Int


class TurnStarted(EventBase):
    """The arm goes on with this repeat, and what follows is of this ``cell`` again, by its index.

    Those of one ``group`` take turns: each runs a repeat before any runs the next one, so that
    repeats of the same number are neighbours in time. Its number is the moment of its first turn;
    None: nobody else has a turn, and the arm runs all of its repeats one behind the other.
    """

    event: Literal["turn"] = "turn"
    cell: Int
    arm: Name
    repeat: Int
    group: Int | None


class RepeatFinished(EventBase):
    """An arm has run the workload once more: its steps and requests since the one before are those.

    Of an experiment's arms alone. The first one warms up; ``generate_s`` leaves out pauses.
    """

    event: Literal["repeat"] = "repeat"
    arm: Name
    repeat: Int
    warm_up: bool
    generate_s: float
