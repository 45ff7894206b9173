"""Signals of one command in this process: which raises, which waits, which kills.

At moments that a test from outside cannot choose; whole programs are in test_interrupted.py.
"""

from __future__ import annotations

import signal
import subprocess
import threading
import time
import weakref

import pytest

from experiment.process.interrupts import EndedError, Interrupts, rendering_started, shielded
from experiment.text.errors import ExitCode

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

pytestmark = pytest.mark.usefixtures("foreground")


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_that_the_parent_ignores_stays_ignored(number: signal.Signals) -> None:
    signal.signal(number, signal.SIG_IGN)
    with Interrupts() as interrupts:
        signal.raise_signal(number)
        assert interrupts.exit_code is None
    assert signal.getsignal(number) is signal.SIG_IGN


def test_a_repeated_sighup_neither_kills_nor_leaves_the_report(
    below: subprocess.Popen[bytes],
) -> None:
    """The system sends it, and so do the shell and whatever ends a session."""
    with Interrupts() as interrupts:
        with pytest.raises(EndedError):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGHUP)
        time.sleep(0.05)
        assert below.poll() is None
        rendering_started()
        signal.raise_signal(signal.SIGHUP)
        assert interrupts.exit_code == ExitCode.TERMINATED


def test_a_signal_waits_behind_a_shield() -> None:
    done: list[str] = []

    def work() -> None:
        with shielded():
            with shielded():
                signal.raise_signal(signal.SIGTERM)
                done.append("inner")
            done.append("outer")

    with Interrupts():
        with pytest.raises(EndedError):
            work()
        with shielded():
            pass  # it came once
    assert done == ["inner", "outer"]


def test_a_signal_that_an_inner_run_has_answered_does_not_end_the_command() -> None:
    with Interrupts() as outer:
        with Interrupts() as inner:
            with pytest.raises(EndedError):
                signal.raise_signal(signal.SIGTERM)
            assert inner.exit_code == ExitCode.TERMINATED
        assert outer.exit_code is None


def test_a_signal_whose_exception_python_drops_is_raised_once_more() -> None:
    """Python prints what the callback of a weak reference raises, and goes on."""

    def drop_and_wait() -> None:
        kept = [threading.Event()]
        weak = weakref.ref(kept[0], lambda _: signal.raise_signal(signal.SIGTERM))
        kept.clear()
        assert weak() is None
        time.sleep(60)

    with Interrupts() as interrupts:
        with pytest.raises(EndedError):
            drop_and_wait()
        assert interrupts.exit_code == ExitCode.TERMINATED
