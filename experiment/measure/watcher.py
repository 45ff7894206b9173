"""Who is shown a run while it is measured, and asked."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiment.config.schema import Config
from experiment.events import CellStarted, Event
from experiment.machine import background_load as noise
from experiment.runner.interleave import Turn
from experiment.text.messages import Message, message

_WAIT = "w"


class Watcher:
    """Shows nothing of a run; a console overrides it."""

    def handle(self, event: Event) -> None:
        """An event of the record."""

    def section(self, key: str) -> None:
        """A part of the run begins: the key of its heading."""

    def begin_task(self, key: str) -> None:
        """Something goes on until :meth:`end_task`."""

    def end_task(self) -> None:
        """It has ended."""

    def warn(self, text: Message, *, always: bool = False) -> None:
        """Something that a person should not miss."""

    def announce(self, key: str | None) -> None:
        """The arms that come next, before a person is asked to go on."""

    def ask(self, question: Message) -> str:  # noqa: ARG002
        """The answer of a person, in small letters."""
        return ""


class CellsWatcher:
    """Shows nothing of an experiment; see :class:`Watcher`."""

    def introduce(
        self, name: str, cells: Sequence[Mapping[str, Any]], repeats: Sequence[int]
    ) -> None:
        """What varies in an experiment, and how often each cell is repeated."""

    def begin(self, started: CellStarted, arm: str) -> None:
        """An arm is about to start."""

    def begin_turn(self, configs: Sequence[Config], turn: Turn, repeat: int) -> None:
        """An arm of a cell, whose configs these are, goes on with a measured repeat."""

    def end(self) -> None:
        """It has ended."""


def may_ask(yes: bool) -> bool:
    """Whether a person sits at a terminal and did not say ``--yes``; in CI nobody does."""
    return not (yes or os.environ.get("CI")) and sys.stdin.isatty() and sys.stdout.isatty()


def others_before(
    warn: Callable[[Message], None], ask: Callable[[Message], str] | None
) -> float | None:
    """Cores that other programs keep busy; where they do, say so and offer to wait.

    Call it while no process of this program works.

    Args:
        warn: prints what was seen.
        ask: returns the answer to a question; None: nobody is asked, and the command goes on.

    Returns:
        What is seen in the end; None where the system does not tell.
    """
    cores = noise.min_background_load()
    if not noise.is_busy(cores):
        return cores
    warn(message(noise.BUSY_BEFORE, cores=cores))
    if ask is None:
        return cores
    if ask(message("quiet.ask")) == _WAIT:
        warn(message("quiet.waiting"))
        cores = noise.wait_until_quiet()
    return cores
