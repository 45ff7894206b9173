"""What is printed when nobody reads it any more: no error of whoever prints.

a terminal that closes    whoever prints meets an error, in any thread, and there is a signal;
                          the error is answered by that signal, so that both are one end
a pipe without a reader   `| head` has what it wanted: the command goes on, and tells nobody
a disk that is full       the command goes on, and its end says what could not be written
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
    """A text stream whose reader may go at any moment, or whose disk may be full.

    ``lost`` is told why what is printed here is kept nowhere.
    """

    def __init__(self, stream: TextIO, lost: list[OSError]) -> None:
        self._stream, self._lost = stream, lost

    def write(self, text: str) -> int:
        """Write ``text``, or nothing where nobody is left to read it."""
        try:
            return self._stream.write(text)
        except OSError as error:
            self._is_left(error)
            return len(text)

    def flush(self) -> None:
        """Hand over what was written."""
        try:
            self._stream.flush()
        except OSError as error:
            self._is_left(error)

    def _is_left(self, error: OSError) -> None:
        """Print to nobody from now on: what goes on is worth more than what is told of it."""
        if self._lost:
            return
        terminal = error.errno == errno.EIO and is_device(self._stream)
        if not terminal and error.errno != errno.EPIPE:
            self._lost.append(error)
        redirect_to_devnull(self._stream)
        if terminal:
            _tell_the_main_thread()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def ignore_broken_pipe(lost: list[OSError] | None = None) -> Iterator[None]:
    """Within this, whatever is printed to somebody who went is printed to nobody.

    ``lost`` is told why the output could not be written, of a full disk for instance.
    """
    before = sys.stdout, sys.stderr
    lost = [] if lost is None else lost
    # None under a windowed Python; and of errors nobody can be told where they are lost.
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
    """Open what whoever started this has closed of input, output and errors: it leads nowhere.

    Else the next file that is opened would be in its place, and what a library prints go into it.
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


def redirect_to_devnull(stream: TextIO, *, terminals_alone: bool = False) -> None:
    """Let a stream lead nowhere; a file or pipe may be left as it is."""
    if terminals_alone and not is_device(stream):
        return
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def is_device(stream: TextIO) -> bool:
    """Whether it may be a terminal; one that is gone does not say so any more."""
    with contextlib.suppress(OSError, ValueError):
        return stat.S_ISCHR(os.fstat(stream.fileno()).st_mode)
    return False


def _tell_the_main_thread() -> None:
    """Its terminal is gone, whether or not the system says so, unless that is ignored."""
    number = getattr(signal, "SIGHUP", None)
    if number is not None and callable(signal.getsignal(number)):
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, number)
