"""The child's end of the pipe: events out as JSON lines, acknowledgements in.

runner ──stdin──►  one JSON line: the task;  then one line for each acknowledged event
child  ──stdout──► events, one JSON line each
child  ──stderr──► the log file (output of libraries goes there, stdout too)
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

_PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>
# Messages of torch's allocators, pinned memory, Triton, CUDA libraries
# (CUBLAS_STATUS_ALLOC_FAILED), C++, Python and the system.
_NO_MEMORY = re.compile(
    r"out of memory|OutOfMemoryError|ALLOC_FAILED|bad_alloc|MemoryError|not enough memory"
    r"|can(?:'t|not) allocate memory",
    re.IGNORECASE,
)


class Wire:
    """Emits events to the runner. Create one per process, before heavy imports."""

    def __init__(self) -> None:
        # Libraries print to file descriptor 1, so events use a copy of it. It is never closed.
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8", newline="\n", closefd=False)
        os.dup2(2, 1)
        self._in = sys.stdin
        self.import_s = 0.0

    def task(self) -> dict[str, Any]:
        """Read the task, the first line from the runner.

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
        """Send a stage and wait until the runner has taken its readings or grants the turn.

        Raises:
            EOFError: the runner is gone.
        """
        self.emit(event)
        if not self._in.readline():
            raise EOFError("the runner closed the pipe")


def serve(
    name: str,
    main: Callable[[Wire, dict[str, Any]], None],
    libraries: Callable[[], None] | None = None,
) -> int:
    """Run ``main`` as a child process and return its exit code; failures become ArmFailed events.

    ``libraries`` imports what ``main`` needs. It runs before the task arrives, so that a process
    that is started ahead has its imports done.
    """
    _die_with_parent()
    wire = Wire()
    arm = name
    try:
        missing = _import_libraries(libraries, wire)
        task = wire.task()
        arm = task.get("arm", name)
        if missing is not None:
            raise missing
        main(wire, task)
    except UserError as error:
        return _fail(wire, arm, error.text, error.exit_code)
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return ExitCode.INTERRUPTED  # the runner is gone or ends this process
    except MemoryError:
        traceback.print_exc()
        return _fail(wire, arm, message("failure.out_of_memory"), ExitCode.INCOMPLETE)
    except Exception as error:
        traceback.print_exc()
        text = f"{type(error).__name__}: {error}"
        if is_out_of_memory(text):
            reason = message("failure.out_of_memory")
        else:
            # Redact before truncating: a truncated secret is not recognised.
            reason = message("failure.exception", error=without_private(text)[:500])
        return _fail(wire, arm, reason, ExitCode.INCOMPLETE)
    return ExitCode.OK


def _import_libraries(libraries: Callable[[], None] | None, wire: Wire) -> Exception | None:
    """Import large libraries without garbage collection; return an error, if any.

    The collector would scan all modules repeatedly and find nothing, which takes a fifth longer.
    Freezing excludes them from later collections too.
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


def exit_process(code: int) -> NoReturn:
    """Exit the process at once, after its exit handlers.

    Unloading torch and Transformers takes a second without any use.
    """
    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def is_out_of_memory(text: str) -> bool:
    """Whether an error's class and text indicate that GPU or host memory is exhausted."""
    return _NO_MEMORY.search(text) is not None


def _die_with_parent() -> None:
    """Have the system kill this process when the runner dies."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _fail(wire: Wire, arm: str, reason: Message, code: int) -> int:
    wire.emit(ArmFailed(arm=arm, reason=reason, exit_code=code))
    return code
