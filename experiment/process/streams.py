"""Output streams whose reader or disk may go away.

a closed terminal         writing fails in any thread, and there is a SIGHUP; the error triggers
                          that signal, so that both lead to the same end
a pipe without a reader   `| head` has read enough: the command continues silently
a full disk               the command continues and reports at its end what was not written
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
import sys
import threading
from collections.abc import Iterator
from typing import Any, TextIO, cast


class _Stream:
    """A text stream whose reader may go away, or whose disk may be full.

    The error is appended to ``lost`` if output could not be stored.
    """

    def __init__(self, stream: TextIO, lost: list[OSError]) -> None:
        self._stream, self._lost = stream, lost

    def write(self, text: str) -> int:
        """Write ``text``; discard it if the reader is gone."""
        try:
            return self._stream.write(text)
        except OSError as error:
            self._handle_error(error)
            return len(text)

    def flush(self) -> None:
        """Flush what was written."""
        try:
            self._stream.flush()
        except OSError as error:
            self._handle_error(error)

    def _handle_error(self, error: OSError) -> None:
        """Redirect the stream to /dev/null and continue."""
        if self._lost:
            return
        terminal = error.errno == errno.EIO and is_device(self._stream)
        if not terminal and error.errno != errno.EPIPE:
            self._lost.append(error)
        redirect_to_devnull(self._stream)
        if terminal:
            _signal_main_thread()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def ignore_broken_pipe(lost: list[OSError] | None = None) -> Iterator[None]:
    """Discard output whose reader is gone.

    Args:
        lost: receives the error if output could not be written, for example to a full disk.
    """
    before = sys.stdout, sys.stderr
    lost = [] if lost is None else lost
    # Streams are None under a windowed Python. Errors of stderr itself cannot be reported.
    ours = [stream and _Stream(stream, to) for stream, to in zip(before, (lost, []), strict=True)]
    sys.stdout, sys.stderr = (cast("TextIO", stream) for stream in ours)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for stream in ours:
            with contextlib.suppress(ValueError):  # closed meanwhile
                if stream:
                    stream.flush()


def reopen_closed_fds() -> None:
    """Open /dev/null in place of closed standard streams.

    Otherwise the next opened file would take the descriptor, and libraries would print into it.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


def redirect_to_devnull(stream: TextIO, *, terminals_only: bool = False) -> None:
    """Redirect a stream to /dev/null, or only if it is a terminal."""
    if terminals_only and not is_device(stream):
        return
    with contextlib.suppress(OSError, ValueError):
        devnull = os.open(os.devnull, os.O_RDWR)
        os.dup2(devnull, stream.fileno())
        os.close(devnull)


def is_device(stream: TextIO) -> bool:
    """Whether the stream is a character device; isatty() fails for a closed terminal."""
    with contextlib.suppress(OSError, ValueError):
        return stat.S_ISCHR(os.fstat(stream.fileno()).st_mode)
    return False


def _signal_main_thread() -> None:
    """Send SIGHUP to the main thread, unless it is ignored."""
    number = getattr(signal, "SIGHUP", None)
    if number is not None and callable(signal.getsignal(number)):
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, number)
