"""How a child process ended, and the message for one that did not report it."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TypeVar

from experiment.events import ArmFailed, Event
from experiment.text.errors import ExitCode
from experiment.text.messages import Message, message

T = TypeVar("T")
# Signals sent by users or the system; other signals indicate a crash.
_ENDED_BY = {
    "SIGKILL": "failure.killed",
    "SIGTERM": "failure.ended",
    "SIGHUP": "failure.ended",
}


@dataclass(frozen=True, slots=True)
class ChildEnd:
    """How a child ended: exit code, the last event of each type, and its processes."""

    exit_code: int
    last: dict[type, Event]
    pids: frozenset[int] = frozenset()
    lingered: bool = False

    @property
    def ok(self) -> bool:
        """Whether no error is known; its last events determine whether it is complete.

        The exit code of a lingering child is ignored: it is that of our signal.
        """
        ended = self.exit_code == ExitCode.OK or self.lingered
        return ended and ArmFailed not in self.last

    def get(self, kind: type[T]) -> T | None:
        """Last event of a type."""
        event = self.last.get(kind)
        return event if isinstance(event, kind) else None


def end_reason(exit_code: int) -> Message:
    """Reason for the end of a child that did not report one."""
    if exit_code == ExitCode.OK:
        return message("failure.no_end")
    if exit_code < 0:
        name = _signal_name(-exit_code)
        return message(_ENDED_BY.get(name, "failure.signal"), signal=name)
    return message("failure.exit", code=exit_code)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no name
        return str(number)
