"""A terminal that goes away in the very moment in which a display begins on it.

Rich cannot stop a display whose start broke off: that would be an error of its own, on top.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pty
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.progress import Progress

from experiment.process.interrupts import EndedError, Interrupts
from experiment.report.console.bench import BenchConsole
from experiment.report.console.display import showing
from experiment.report.console.reporter import ConsoleReporter
from experiment.text.messages import message

Begin = Callable[[], object]
Shown = tuple[Any, Begin, Begin]


@contextmanager
def a_terminal() -> Iterator[tuple[int, Any]]:
    """Our end of a new terminal, and a file of the other one."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w", encoding="utf-8") as file:
        try:
            yield ours, file
        finally:
            redirect_to_devnull(theirs)


def redirect_to_devnull(descriptor: int) -> None:
    """What a run does that finds its terminal gone."""
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), descriptor)


def displays(file: Any) -> list[Shown]:
    """What shows that something is going on: whose it is, how it begins, how it ends."""
    run, bench = ConsoleReporter("en"), BenchConsole("en")
    for console in (run.console, bench.console):
        console.file = file
        console._force_terminal = True
    return [
        (run, lambda: run.begin_task("progress.prepare"), run.end_task),
        (bench, lambda: bench.say(message("bench.limits")), bench.end),
    ]


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Whoever runs the tests in the background has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("which", [0, 1])
def test_a_display_that_could_not_begin_need_not_end(which: int) -> None:
    stdout, stderr = sys.stdout, sys.stderr
    with a_terminal() as (ours, file):
        shown, begin, end = displays(file)[which]
        os.close(ours)
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            begin()
        redirect_to_devnull(file.fileno())
        end()
        begin()
        end()
        shown.console.print("whatever comes is still printed, to nobody")
    assert (sys.stdout, sys.stderr) == (stdout, stderr)


@pytest.mark.parametrize("which", [0, 1])
def test_a_signal_while_a_display_begins_or_ends_waits_until_it_has(
    which: int, ctrl_c: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_terminal() as (ours, file), Interrupts():
        shown, begin, end = displays(file)[which]
        show_cursor = shown.console.show_cursor

        def and_ctrl_c(show: bool = True) -> bool:
            monkeypatch.setattr(shown.console, "show_cursor", show_cursor)
            signal.raise_signal(signal.SIGINT)
            return bool(show_cursor(show))

        monkeypatch.setattr(shown.console, "show_cursor", and_ctrl_c)
        with pytest.raises(EndedError):
            begin()
        assert shown.console._live_stack != []
        end()
        assert (shown.console._live_stack, shown.console._render_hooks) == ([], [])
        os.close(ours)


def test_a_display_ends_however_that_ends_for_which_it_was_shown() -> None:
    with a_terminal() as (_, file):
        progress = Progress(console=Console(file=file, force_terminal=True))
        with contextlib.suppress(EndedError), showing(progress):
            assert progress.live.is_started
            raise EndedError
        assert not progress.live.is_started
