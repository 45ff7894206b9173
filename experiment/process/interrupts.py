"""Ctrl-C, an end that is asked for, a terminal that closes: each ends a command in order, and once.

    first signal    the command is interrupted: its processes are ended, the record is closed, a
                    report is drawn of what was measured
    a second one    what is still running is killed at once; a report that is being drawn is left

That a terminal closed is told more than once, by the system, by the shell and by whoever ends a
session behind another signal: it is nobody's second wish, and a report is drawn all the same.

A signal is raised as an exception wherever the program stands, but for the moments in which a
process is started or ended: behind :func:`shielded` it waits, so that none is left behind. Where
Python drops the exception, as in a finalizer or in the callback of a weak reference, the signal is
sent once more.
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

# 128 and the number, as a shell says it; see ExitCode.
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")
_USUAL = (signal.SIG_DFL, signal.default_int_handler)
# Long enough for the main thread to be out of the callback that swallowed a signal.
_AGAIN_AFTER_S = 0.001


class EndedError(KeyboardInterrupt):
    """A signal asked the program to end."""


class Interrupts:
    """Takes the signals of a command while it is entered; one at a time, in the main thread.

    A run within a command takes them for as long as it lasts. A signal that the parent process has
    ignored, as nohup does, stays ignored.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._drawing = False
        self._shields = 0
        self._waiting = False
        # The signal whose exception Python dropped, and whether the next one is that one once more.
        self._dropped: signal.Signals | None = None
        self._again = False
        self._sending: list[bool] = []  # threads that are about to send it
        self._raised: signal.Signals | None = None
        self._thread = 0
        self._hook_before: Callable[[sys.UnraisableHookArgs], object] = sys.unraisablehook
        self._before: dict[signal.Signals, Any] = {}

    @property
    def exit_code(self) -> int | None:
        """The exit code of the signal that ended the command; None where none did."""
        return None if self.signal is None else 128 + self.signal

    def draws(self) -> None:
        """From now on a report is drawn: the next signal leaves it."""
        self._drawing = True

    def on_sighup(self) -> None:
        """The terminal is gone: whatever is printed to it from here on, nobody can read."""
        self.signal = self.signal or signal.SIGHUP
        for stream in (sys.stdin, sys.stdout, sys.stderr):
            if stream is not None:
                redirect_to_devnull(stream, terminals_alone=True)

    def __enter__(self) -> Interrupts:
        self._shields += 1  # nothing comes between two handlers
        if threading.current_thread() is threading.main_thread():
            self._thread = threading.get_ident()
            self._hook_before, sys.unraisablehook = sys.unraisablehook, self._cannot_be_raised
            for name in _NAMES:
                number = getattr(signal, name, None)
                if number is not None and _is_ours(signal.getsignal(number)):
                    self._before[number] = signal.getsignal(number)
                    signal.signal(number, self._take)
        _active.append(self)
        if self._waiting:
            self._leave(None)
        self._shields -= 1
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._shields += 1  # whatever comes from here on waits until the hands are off
        self._leave(kind)

    def _leave(self, kind: type[BaseException] | None) -> None:
        while self._sending:
            time.sleep(_AGAIN_AFTER_S)  # else its signal would meet nobody's hands
        place = _active.index(self)
        for cut_short in _active[place + 1 :]:  # by a signal, as they were left
            if cut_short.signal is not None:
                self.signal = self.signal or cut_short.signal
        del _active[place:]
        outer = _active[-1] if _active else None
        with outer.shield() if outer else contextlib.nullcontext():
            # Ctrl-C last: alone it raises an exception where nobody has it in hand.
            for number, handler in reversed(self._before.items()):
                signal.signal(number, handler)
            owner = getattr(sys.unraisablehook, "__self__", None)
            if isinstance(owner, Interrupts) and owner not in _active:
                sys.unraisablehook = self._hook_before
            ended = kind is not None and issubclass(kind, KeyboardInterrupt)
            unheard = self._waiting or self._dropped is not None
            if outer and (ended or unheard):
                outer.signal = outer.signal or self.signal  # it ends that one, too
        if unheard and not ended:
            raise EndedError

    @contextlib.contextmanager
    def shield(self) -> Iterator[None]:
        """Signals wait until this is left, however it is left.

        Raises:
            EndedError: on leaving, where one came meanwhile.
        """
        self._shields += 1
        try:
            yield
        finally:
            self._shields -= 1
            if self._waiting and not self._shields:
                self._waiting, self._dropped = False, None
                raise EndedError

    def _cannot_be_raised(self, told: sys.UnraisableHookArgs) -> None:
        if not isinstance(told.exc_value, EndedError) or self._raised is None:
            self._hook_before(told)
            return
        self._dropped = self._raised
        self._sending.append(True)
        try:
            _thread.start_new_thread(self._send_again, ())  # takes no lock, as Thread does
        except RuntimeError:  # the system makes no thread more
            self._sending.pop()
            self._waiting = True  # until the next shield is left

    def _send_again(self) -> None:
        try:
            time.sleep(_AGAIN_AFTER_S)
            number = self._dropped
            if number is None:
                return  # another signal has brought it meanwhile
            self._again = True
            if hasattr(signal, "pthread_kill"):  # wakes a main thread that waits for something
                signal.pthread_kill(self._thread, number)
            else:
                _thread.interrupt_main(number)
        finally:
            self._sending.pop()

    def _take(self, number: int, _: FrameType | None) -> None:
        again, self._again = self._again, False
        if again and self._dropped is None:
            return  # it was sent twice
        first = self.signal is None or self._dropped is not None
        self._dropped = None
        self._raised = signal.Signals(number)
        self.signal = self.signal or self._raised
        if number == getattr(signal, "SIGHUP", None):
            self.on_sighup()
            if not first or self._drawing:
                return  # what is left to be done is done, to nobody
        if not (first or self._drawing):
            _kill_what_runs()
        elif self._shields:
            self._waiting = True
        else:
            self._waiting = False
            raise EndedError


_active: list[Interrupts] = []
_left: set[Path] = set()


def drawing() -> None:
    """Of the command in progress a report is drawn from now on: the next signal leaves it."""
    if _active:
        _active[-1].draws()


def answer(read: Callable[[], str]) -> str:
    """What whoever sits at the terminal answers; an empty line where the input is at its end.

    The question is to be printed before: a signal that comes while ``read`` flushes or begins to
    wait would not be heard until somebody presses Enter, so the waiting is done here.

    Raises:
        KeyboardInterrupt: a signal came, or the terminal is gone and its signal has not come yet.
        OSError: the input is a file that cannot be read.
    """
    _wait_for_an_answer()
    said = _answer(read)
    # Python's input() drops whatever is raised while it flushes the output.
    if _active and _active[-1].signal is not None:
        raise EndedError
    return said


def _wait_for_an_answer() -> None:
    """Until a line is typed or a signal came: that one wakes through a pipe, however early it is.

    A call that waits for the terminal alone sleeps on where a signal came just before it.

    Raises:
        EndedError: a signal came.
    """
    ours = threading.current_thread() is threading.main_thread()
    if not ours or os.name != "posix" or not is_device(sys.stdin):
        return
    with shielded():  # a signal is raised behind it, when all is as it was
        heard, told = os.pipe()
        os.set_blocking(told, False)
        before = signal.set_wakeup_fd(told, warn_on_full_buffer=False)
        try:
            if not (_active and _active[-1]._waiting):  # it came before the pipe was there
                select.select([sys.stdin, heard], [], [])
        finally:
            signal.set_wakeup_fd(before)
            os.close(heard)
            os.close(told)


def _answer(read: Callable[[], str]) -> str:
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
    """Signals of the run in progress, if there is one, wait until this is left."""
    if not _active:
        yield
        return
    with _active[-1].shield():
        yield


def _is_ours(handler: Any) -> bool:
    """Whether nobody else wants a signal: it does what it usually does, or a command has it."""
    return handler in _USUAL or isinstance(getattr(handler, "__self__", None), Interrupts)


def leaked_segments() -> frozenset[Path]:
    """Shared memory of what a second signal killed since this was asked last."""
    found = frozenset(_left)
    _left.clear()
    return found


def _kill_what_runs() -> None:
    """Kill every process below this one, by its own id; who waits for them goes on at once.

    But for those that give back what the others leave: they end by themselves behind them.
    """
    import psutil  # not needed to print a help text

    from experiment.process.process_tree import is_guard
    from experiment.process.shared_memory import is_tracker, segments_of

    with contextlib.suppress(psutil.Error, OSError):
        below = psutil.Process().children(recursive=True)
        _left.update(segments_of(below))
        for process in below:
            with contextlib.suppress(psutil.Error):
                if not (is_tracker(process) or is_guard(process)):
                    process.kill()
