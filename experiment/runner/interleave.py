"""Interleave the repeats of arms, so that their times can be compared.

    a   load, warm-up │·······························│1│·····│1│   repeats of the same number are
    b                   load, warm-up │···············│ │1│···│ │   close in time: background load
    c                                   load, warm-up │ │ │1│1│ │   slows down all arms alike

After its warm-up an arm waits: its process sleeps on a pipe and is not sampled. Every second round
runs in reverse order, so that a gradual slowdown affects each arm equally. Arms of all cells are
interleaved, as far as memory allows; otherwise the waiting ones are completed first.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Generic, Self, TypeVar

import psutil

from experiment.events import TurnAwaited
from experiment.memory.cgroup import read_cgroup
from experiment.process.interrupts import shielded
from experiment.process.process_tree import descendants

T = TypeVar("T")
Place = tuple[int, str]  # index of a cell, and an arm
# The next arms may need more than the largest so far, and this share of memory stays free.
_SPARE, _FREE_SHARE = 1.5, 0.25
# If a run is killed, none of its interleaved arms is complete.
_MOST = 16


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn: the arm, its group, and the number of arms in the group.

    ``group`` is None for an arm that is not interleaved.
    """

    place: Place
    group: int | None
    of: int


# An arm as a coroutine. It yields when it waits for a turn, is sent the turn (None if not
# interleaved), and returns the arm's result. Closing it early ends its process.
ArmCoroutine = Generator[TurnAwaited, Turn | None, T]


def run_to_completion(coroutine: ArmCoroutine[T]) -> T:
    """Run an arm to completion without interleaving; return its result."""
    with contextlib.closing(coroutine):
        try:
            next(coroutine)
            while True:
                coroutine.send(None)
        except StopIteration as end:
            result: T = end.value
            return result


class Interleaver(Generic[T]):
    """Interleaved arms after their warm-up; leaving the context ends them.

    Args:
        on_turn: called before each turn with the turn and the number of the repeat.

    Attributes:
        ended: result of each completed arm.
    """

    def __init__(self, on_turn: Callable[[Turn, int], None]) -> None:
        self.ended: dict[Place, T] = {}
        self._on_turn = on_turn
        self._coroutines: dict[Place, ArmCoroutine[T]] = {}
        self._repeats: dict[Place, int] = {}  # that an arm waits for

    def add(self, place: Place, coroutine: ArmCoroutine[T]) -> None:
        """Run an arm up to its first turn, while the others wait."""
        self._coroutines[place] = coroutine
        self._advance(place, None)

    def run(self) -> None:
        """Run all arms to completion, round-robin."""
        of, backwards = len(self._coroutines), False
        group = time.monotonic_ns() if of > 1 else None
        while self._coroutines:
            order = tuple(self._coroutines)
            for place in reversed(order) if backwards else order:
                turn = Turn(place, group, of)
                self._on_turn(turn, self._repeats[place])
                self._advance(place, turn)
            backwards = not backwards

    def _advance(self, place: Place, turn: Turn | None) -> None:
        coroutine = self._coroutines[place]
        try:
            awaited = next(coroutine) if turn is None else coroutine.send(turn)
        except StopIteration as end:
            self.ended[place] = end.value
            del self._coroutines[place]
        else:
            self._repeats[place] = awaited.repeat

    def has_room(self, more: int) -> bool:
        """Whether ``more`` arms may join: at most sixteen in all, and within memory.

        True if no arm is waiting.
        """
        if not self._coroutines:
            return True
        if len(self._coroutines) + more > _MOST:
            return False
        largest = max((_resident(process) for process in descendants(os.getpid())), default=0)
        memory, group = psutil.virtual_memory(), read_cgroup()
        free = _least(memory.available, group.memory_free_bytes)
        total = _least(memory.total, group.memory_bytes)
        return free >= more * _SPARE * largest + _FREE_SHARE * total

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End all waiting arms, even if one fails; signals are deferred."""
        with shielded(), contextlib.ExitStack() as ends:
            for coroutine in self._coroutines.values():
                ends.callback(coroutine.close)
            self._coroutines.clear()


def _least(of_machine: int, of_group: int | None) -> int:
    """The smaller limit of machine and control group."""
    return of_machine if of_group is None else min(of_machine, of_group)


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0
