"""The child's end of the pipe: events go out as JSON lines, acknowledgements come back.

runner ──stdin──►  one JSON line: the task;  then one line for each acknowledged event
child  ──stdout──► events, one JSON line each
child  ──stderr──► the log file (everything that libraries print lands there, stdout too)
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import json
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from experiment.events import ArmFailed, Event, StageEntered, TurnAwaited, encode
from experiment.text.errors import ExitCode, UserError
from experiment.text.messages import Message, message
from experiment.text.redaction import without_private

_PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>
# Torch's allocators, pinned memory and Triton, CUDA's libraries (CUBLAS_STATUS_ALLOC_FAILED), C++,
# Python, and the system's own words.
_NO_MEMORY = re.compile(
    r"out of memory|OutOfMemoryError|ALLOC_FAILED|bad_alloc|MemoryError|not enough memory"
    r"|can(?:'t|not) allocate memory",
    re.IGNORECASE,
)


class Wire:
    """Emits events to the runner. Make one per process, before heavy imports."""

    def __init__(self) -> None:
        # Libraries print to file descriptor 1; only the copy made here reaches the runner.
        # It stays open as long as the process.
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8", newline="\n", closefd=False)
        os.dup2(2, 1)
        self._in = sys.stdin
        self.import_s = 0.0

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

    def mark(self, event: StageEntered | TurnAwaited) -> None:
        """Send a stage and stand still until the runner has taken its readings, or it is its turn.

        Raises:
            EOFError: the runner is gone, so there is nobody to work for.
        """
        self.emit(event)
        if not self._in.readline():
            raise EOFError("the runner closed the pipe")


def serve(
    name: str,
    main: Callable[[Wire, dict[str, Any]], None],
    libraries: Callable[[], None] | None = None,
) -> int:
    """Run ``main`` as a child process; every way to fail becomes an ArmFailed event.

    ``libraries`` imports what ``main`` needs. It does not wait for the task: a process that is
    started ahead has it behind itself when its turn comes.

    Returns the exit code.
    """
    _end_with_the_runner()
    wire = Wire()
    arm = name
    try:
        missing = _imported(libraries, wire)
        task = wire.task()
        arm = task.get("arm", name)
        if missing is not None:
            raise missing
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
        text = f"{type(error).__name__}: {error}"
        if is_out_of_memory(text):
            reason = message("failure.out_of_memory")
        else:
            # Redacted before it is cut: half a secret would not be found later.
            reason = message("failure.exception", error=without_private(text)[:500])
        return _fail(wire, arm, reason, ExitCode.INCOMPLETE)
    return ExitCode.OK


def _imported(libraries: Callable[[], None] | None, wire: Wire) -> Exception | None:
    """Import large libraries, a fifth faster; what went wrong is to be raised for the task.

    The garbage collector would walk all modules again and again while they come in, and find
    nothing. What is there afterwards stays for good, so that it need not be walked later either.
    """
    if libraries is None:
        return None
    begin = time.monotonic()
    gc.disable()
    try:
        libraries()
    except Exception as error:
        return error
    finally:
        gc.enable()
        gc.freeze()
        wire.import_s = time.monotonic() - begin
    return None


def leave(code: int) -> NoReturn:
    """End the process at once, after what is registered for its end.

    Taking torch and Transformers apart, module by module, takes a second and is of use to nobody:
    the system takes the memory back as a whole.
    """
    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def is_out_of_memory(text: str) -> bool:
    """Whether an error, its class and its text, says that memory ran out, a GPU's or the host's."""
    return _NO_MEMORY.search(text) is not None


def _end_with_the_runner() -> None:
    """Have the system kill this process when the runner dies, however busy or stopped it is."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _fail(wire: Wire, arm: str, reason: Message, code: int) -> int:
    wire.emit(ArmFailed(arm=arm, reason=reason, exit_code=code))
    return code
