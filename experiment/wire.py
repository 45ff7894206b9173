"""The child's end of the pipe: events go out as JSON lines, acknowledgements come back.

runner ──stdin──►  one JSON line: the task;  then one line for each acknowledged event
child  ──stdout──► events, one JSON line each
child  ──stderr──► the log file (everything that libraries print lands there, stdout too)
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

from experiment.events import ArmFailed, Event, StageEntered, encode
from experiment.messages import ExitCode, Message, UserError, message

_PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>


class Wire:
    """Emits events to the runner. Make one per process, before heavy imports."""

    def __init__(self) -> None:
        # Libraries print to file descriptor 1; only the copy made here reaches the runner.
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8", newline="\n")
        os.dup2(2, 1)
        self._in = sys.stdin

    def task(self) -> dict[str, Any]:
        """The task that the runner wrote as the first line.

        Raises:
            EOFError: the runner is gone.
        """
        line = self._in.readline()
        if not line:
            raise EOFError("the runner closed the pipe")
        data = json.loads(line)
        assert isinstance(data, dict)
        return data

    def emit(self, event: Event) -> None:
        """Send one event."""
        self._out.write(encode(event) + "\n")
        self._out.flush()

    def mark(self, event: StageEntered) -> None:
        """Send a stage and stand still until the runner has taken its readings.

        Raises:
            EOFError: the runner is gone, so there is nobody to work for.
        """
        self.emit(event)
        if not self._in.readline():
            raise EOFError("the runner closed the pipe")


def serve(name: str, main: Callable[[Wire, dict[str, Any]], None]) -> int:
    """Run ``main`` as a child process; every way to fail becomes an ArmFailed event.

    Returns the exit code.
    """
    _end_with_the_runner()
    wire = Wire()
    arm = name
    try:
        task = wire.task()
        arm = task.get("arm", name)
        main(wire, task)
    except UserError as error:
        return _fail(wire, arm, error.text, error.exit_code)
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return ExitCode.INTERRUPTED  # the runner is gone or ends us: nobody is left to tell
    except MemoryError:
        traceback.print_exc()
        return _fail(wire, arm, message("failure.out_of_memory"), ExitCode.INCOMPLETE)
    except Exception as error:
        traceback.print_exc()
        # Torch's own error on a GPU, and what its allocator says on a CPU.
        if type(error).__name__ == "OutOfMemoryError" or _says_no_memory(error):
            reason = message("failure.out_of_memory")
        else:
            reason = message("failure.exception", error=f"{type(error).__name__}: {error}"[:500])
        return _fail(wire, arm, reason, ExitCode.INCOMPLETE)
    return ExitCode.OK


def _says_no_memory(error: Exception) -> bool:
    return any(words in str(error) for words in ("can't allocate memory", "bad_alloc"))


def _end_with_the_runner() -> None:
    """Have the system kill this process when the runner dies, however busy or stopped it is."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _fail(wire: Wire, arm: str, reason: Message, code: int) -> int:
    wire.emit(ArmFailed(arm=arm, reason=reason, exit_code=code))
    return code
