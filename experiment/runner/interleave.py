"""Arms that run the same requests again and again take turns, so that their times can be compared.

    a   load, warm-up │·······························│1│·····│1│   repeats of the same number are
    b                   load, warm-up │···············│ │1│···│ │   neighbours in time: whatever
    c                                   load, warm-up │ │ │1│1│ │   slows the machine slows all

An arm behind its warm-up stands still: its process sleeps on a pipe and nobody samples it. Every
second round goes backwards, so that a machine that becomes slower and slower is for an arm in one
round and against it in the next. Arms of all cells take turns, as far as memory reaches: else those
that wait are run to their ends first.
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
# The next arms may need more than the largest so far; and that much of all memory stays free.
_SPARE, _FREE_SHARE = 1.5, 0.25
# A run that is killed has not finished any of those that take turns.
_MOST = 16


@dataclass(frozen=True, slots=True)
class Turn:
    """Whose turn it is, the number of those who take turns together, and how many they are.

    One that goes on alone is of no group.
    """

    place: Place
    group: int | None
    of: int


# What goes on with an arm, from one of its turns to the next: yields whenever it waits for one, is
# sent it when it has come (None where nobody else waits), and returns what came of the arm. Closed
# before its end, it ends its process.
Course = Generator[TurnAwaited, Turn | None, T]


def alone(course: Course[T]) -> T:
    """What comes of an arm that waits for nobody."""
    with contextlib.closing(course):
        try:
            next(course)
            while True:
                course.send(None)
        except StopIteration as end:
            result: T = end.value
            return result


class Turns(Generic[T]):
    """Arms that are past their warm-up and wait for each other; leave it, and they are ended.

    Args:
        begins: told of each turn, and the number of the repeat, before it.

    Attributes:
        ended: what came of each arm that has ended.
    """

    def __init__(self, begins: Callable[[Turn, int], None]) -> None:
        self.ended: dict[Place, T] = {}
        self._begins = begins
        self._courses: dict[Place, Course[T]] = {}
        self._repeats: dict[Place, int] = {}  # that an arm waits for

    def add(self, place: Place, course: Course[T]) -> None:
        """Begin with an arm, up to its first turn, while the others stand still."""
        self._courses[place] = course
        self._go_on(place, None)

    def run(self) -> None:
        """Give every arm its turns until all have ended."""
        of, backwards = len(self._courses), False
        group = time.monotonic_ns() if of > 1 else None
        while self._courses:
            order = tuple(self._courses)
            for place in reversed(order) if backwards else order:
                turn = Turn(place, group, of)
                self._begins(turn, self._repeats[place])
                self._go_on(place, turn)
            backwards = not backwards

    def _go_on(self, place: Place, turn: Turn | None) -> None:
        course = self._courses[place]
        try:
            awaited = next(course) if turn is None else course.send(turn)
        except StopIteration as end:
            self.ended[place] = end.value
            del self._courses[place]
        else:
            self._repeats[place] = awaited.repeat

    def has_room(self, more: int) -> bool:
        """Whether so many may join those that wait: sixteen at most, and as memory suffices.

        Where nobody waits there is nothing to be done about it.
        """
        if not self._courses:
            return True
        if len(self._courses) + more > _MOST:
            return False
        largest = max((_resident(process) for process in descendants(os.getpid())), default=0)
        memory, group = psutil.virtual_memory(), read_cgroup()
        free = _least(memory.available, group.memory_free_bytes)
        total = _least(memory.total, group.memory_bytes)
        return free >= more * _SPARE * largest + _FREE_SHARE * total

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End those that wait, each of them whatever becomes of the others; a signal waits."""
        with shielded(), contextlib.ExitStack() as ends:
            for course in self._courses.values():
                ends.callback(course.close)
            self._courses.clear()


def _least(of_machine: int, of_group: int | None) -> int:
    """What binds: the machine's, or that of the control group that we are in, where it has one."""
    return of_machine if of_group is None else min(of_machine, of_group)


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0
