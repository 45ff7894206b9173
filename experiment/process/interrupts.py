"""Handling of SIGINT, SIGTERM and SIGHUP: each ends a command in order, once.

    first signal    the command is interrupted: its processes are ended, the record is closed, a
                    report is rendered from what was measured
    second signal   running processes are killed at once; rendering is aborted

Repeated SIGHUPs do not count as a second signal: the system, the shell and others may each send one
when a terminal closes.

A signal raises an exception wherever the program is. Inside :func:`shielded`, where processes are
started or ended, it is deferred, so that none is left behind. Where Python drops the exception, as
in finalizers and weak-reference callbacks, the signal is sent again.
"""

from __future__ import annotations

import _thread
import contextlib
import errno
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from experiment.process.streams import is_device, redirect_to_devnull

# Exit code 128 + number, as in shells; see ExitCode.
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")
_DEFAULT_HANDLERS = (signal.SIG_DFL, signal.default_int_handler)
# Long enough for the main thread to leave the callback that dropped the exception.
_AGAIN_AFTER_S = 0.001


class EndedError(KeyboardInterrupt):
    """A signal asked the program to end."""


class Interrupts:
    """Handles signals of a command while entered; used in the main thread.

    A command within a command takes over the signals meanwhile. A signal that the parent process
    ignored, as with nohup, stays ignored.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._rendering = False
        self._shields = 0
        self._waiting = False
        self._dropped = False  # the exception, by Python; the next signal is the same one again
        self._thread = 0
        self._hook_before: Callable[[sys.UnraisableHookArgs], object] = sys.unraisablehook
        self._before: dict[signal.Signals, Any] = {}

    @property
    def exit_code(self) -> int | None:
        """Exit code of the signal that ended the command; None if there was none."""
        return None if self.signal is None else 128 + self.signal

    def start_rendering(self) -> None:
        """Rendering has started: the next signal aborts it."""
        self._rendering = True

    def on_sighup(self) -> None:
        """Redirect terminal streams to /dev/null: the terminal is gone."""
        self.signal = self.signal or signal.SIGHUP
        for stream in (sys.stdin, sys.stdout, sys.stderr):
            if stream is not None:
                redirect_to_devnull(stream, terminals_only=True)

    def __enter__(self) -> Interrupts:
        self._shields += 1  # no signal between two handlers
        if threading.current_thread() is threading.main_thread():
            self._thread = threading.get_ident()
            self._hook_before, sys.unraisablehook = sys.unraisablehook, self._on_unraisable
            for name in _NAMES:
                number = getattr(signal, name, None)
                if number is not None and _may_handle(signal.getsignal(number)):
                    self._before[number] = signal.getsignal(number)
                    signal.signal(number, self._on_signal)
        _active.append(self)
        if self._waiting:
            self._leave(None)
        self._shields -= 1
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._shields += 1  # defer signals until the handlers are restored
        self._leave(kind)

    def _leave(self, kind: type[BaseException] | None) -> None:
        dropped, self._dropped = self._dropped, False  # not sent again from now on
        place = _active.index(self)
        for cut_short in _active[place + 1 :]:  # cut short by a signal
            if cut_short.signal is not None:
                self.signal = self.signal or cut_short.signal
        del _active[place:]
        outer = _active[-1] if _active else None
        with outer.shield() if outer else contextlib.nullcontext():
            # SIGINT last: only its default handler raises an exception.
            for number, handler in reversed(self._before.items()):
                signal.signal(number, handler)
            owner = getattr(sys.unraisablehook, "__self__", None)
            if isinstance(owner, Interrupts) and owner not in _active:
                sys.unraisablehook = self._hook_before
            ended = kind is not None and issubclass(kind, KeyboardInterrupt)
            pending = self._waiting or dropped
            if outer and (ended or pending):
                outer.signal = outer.signal or self.signal  # it ends the outer command too
        if pending and not ended:
            raise EndedError

    @contextlib.contextmanager
    def shield(self) -> Iterator[None]:
        """Defer signals until the block is left.

        Raises:
            EndedError: on leaving, if a signal came meanwhile.
        """
        self._shields += 1
        try:
            yield
        finally:
            self._shields -= 1
            if self._waiting and not self._shields:
                self._waiting = self._dropped = False
                raise EndedError

    def _on_unraisable(self, unraisable: sys.UnraisableHookArgs) -> None:
        if not isinstance(unraisable.exc_value, EndedError):
            self._hook_before(unraisable)
            return
        self._dropped = True
        try:
            _thread.start_new_thread(self._send_again, ())  # takes no lock, unlike Thread
        except RuntimeError:  # the system cannot start a thread
            self._waiting = True  # until the next shield is left

    def _send_again(self) -> None:
        time.sleep(_AGAIN_AFTER_S)
        if not self._dropped or self.signal is None:
            return  # another signal raised it meanwhile
        if hasattr(signal, "pthread_kill"):  # wakes a blocked main thread
            signal.pthread_kill(self._thread, self.signal)
        else:
            _thread.interrupt_main(self.signal)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        first, self._dropped = self.signal is None or self._dropped, False
        self.signal = self.signal or signal.Signals(number)
        if number == getattr(signal, "SIGHUP", None):
            self.on_sighup()
            if not first or self._rendering:
                return  # finish without output
        if not (first or self._rendering):
            _kill_descendants()
        elif self._shields:
            self._waiting = True
        else:
            self._waiting = False
            raise EndedError


_active: list[Interrupts] = []
_leaked: set[Path] = set()


def rendering_started() -> None:
    """Rendering has started in the present command: the next signal aborts it."""
    if _active:
        _active[-1].start_rendering()


def read_answer(read: Callable[[], str]) -> str:
    """Read the user's answer from the terminal; an empty line at the end of the input.

    Print the question before. ``read`` would not notice a signal that arrives while it flushes or
    starts to block, so this function waits for the input itself.

    Raises:
        KeyboardInterrupt: a signal came, or the terminal is gone.
        OSError: the input is a file that cannot be read.
    """
    _wait_for_input()
    line = _read_answer(read)
    # Python's input() drops exceptions that are raised while it flushes the output.
    if _active and _active[-1].signal is not None:
        raise EndedError
    return line


def _wait_for_input() -> None:
    """Wait for a line or a signal; a wakeup pipe also catches signals that arrive early.

    A call that waits only for the terminal would block if a signal arrived just before it.

    Raises:
        EndedError: a signal came.
    """
    ours = threading.current_thread() is threading.main_thread()
    if not ours or os.name != "posix" or not is_device(sys.stdin):
        return
    with shielded():  # a signal is raised after everything is restored
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        before = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        try:
            if not (_active and _active[-1]._waiting):  # it came before the pipe existed
                select.select([sys.stdin, read_end], [], [])
        finally:
            signal.set_wakeup_fd(before)
            os.close(read_end)
            os.close(write_end)


def _read_answer(read: Callable[[], str]) -> str:
    try:
        return read()
    except EOFError:
        return ""
    except OSError as error:
        if error.errno != errno.EIO or not is_device(sys.stdin):
            raise
        if _active:
            _active[-1].on_sighup()
        raise EndedError from error


@contextlib.contextmanager
def shielded() -> Iterator[None]:
    """Defer signals of the present command until the block is left; other threads get none."""
    if not _active or threading.current_thread() is not threading.main_thread():
        yield
        return
    with _active[-1].shield():
        yield


def _may_handle(handler: Any) -> bool:
    """Whether the handler is the default or belongs to a command."""
    return handler in _DEFAULT_HANDLERS or isinstance(
        getattr(handler, "__self__", None), Interrupts
    )


def leaked_segments() -> frozenset[Path]:
    """Shared memory of processes that a second signal killed, since the last call."""
    found = frozenset(_leaked)
    _leaked.clear()
    return found


def _kill_descendants() -> None:
    """Kill every process below this one, except resource trackers and orphan reapers.

    Those clean up after the others and end by themselves.
    """
    import psutil  # not needed to print a help text

    from experiment.process.process_tree import is_reaper
    from experiment.process.shared_memory import is_tracker, segments_of

    with contextlib.suppress(psutil.Error, OSError):
        children = psutil.Process().children(recursive=True)
        _leaked.update(segments_of(children))
        for process in children:
            with contextlib.suppress(psutil.Error):
                if not (is_tracker(process) or is_reaper(process)):
                    process.kill()
