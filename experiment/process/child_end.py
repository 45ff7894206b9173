"""How a child process ended, and what is said of one that could not say so itself."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TypeVar

from experiment.events import ArmFailed, Event
from experiment.text.errors import ExitCode
from experiment.text.messages import Message, message

T = TypeVar("T")
# What somebody sends; other signals are the system's word for a crash.
_ENDED_BY = {
    "SIGKILL": "failure.killed",
    "SIGTERM": "failure.ended",
    "SIGHUP": "failure.ended",
}


@dataclass(frozen=True, slots=True)
class ChildEnd:
    """How a child ended, the last event of each type that it sent, and its processes."""

    exit_code: int
    last: dict[type, Event]
    pids: frozenset[int] = frozenset()
    lingered: bool = False

    @property
    def ok(self) -> bool:
        """Whether nothing went wrong that is known; its last events say whether it is complete.

        The exit code of a child that had to be ended after its last word is ours.
        """
        ended = self.exit_code == ExitCode.OK or self.lingered
        return ended and ArmFailed not in self.last

    def get(self, kind: type[T]) -> T | None:
        """Its last event of a type."""
        event = self.last.get(kind)
        return event if isinstance(event, kind) else None


def end_reason(exit_code: int) -> Message:
    """Why a child ended that said nothing of it."""
    if exit_code == ExitCode.OK:
        return message("failure.no_end")
    if exit_code < 0:
        name = _signal_name(-exit_code)
        return message(_ENDED_BY.get(name, "failure.signal"), signal=name)
    return message("failure.exit", code=exit_code)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # those for whatever a program likes have none
        return str(number)
