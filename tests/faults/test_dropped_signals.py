"""Signals whose exception Python drops, and those at the ends of a command: none is lost.

An exception out of a finalizer or out of the callback of a weak reference is printed and forgotten.
"""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
import weakref

import pytest
from moments import each_step
from programs import read_until

from experiment.process import interrupts as module
from experiment.process.interrupts import EndedError, Interrupts, drawing, shielded
from experiment.text.errors import ExitCode

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

pytestmark = pytest.mark.usefixtures("foreground")


class _Watched:
    """Something that a weak reference can be kept of."""


def _let_go_and_wait(holder: list[_Watched]) -> None:
    holder.clear()
    time.sleep(60)  # long, unless a signal wakes it


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_in_a_callback_that_drops_it_is_raised_behind(
    number: signal.Signals, below: subprocess.Popen[bytes], capfd: pytest.CaptureFixture[str]
) -> None:
    """Python prints what a weak reference's callback raises, and goes on: nothing would end."""
    with Interrupts() as interrupts:
        holder = [_Watched()]
        kept = weakref.ref(holder[0], lambda _: signal.raise_signal(number))
        with pytest.raises(EndedError):
            _let_go_and_wait(holder)
        assert kept() is None
        assert interrupts.exit_code == 128 + number
        assert below.poll() is None  # it is no second wish
    assert capfd.readouterr().err == ""


def _dropped(number: signal.Signals) -> None:
    """Send a signal where Python drops what it raises."""
    holder = [_Watched()]
    kept = weakref.ref(holder[0], lambda _: signal.raise_signal(number))
    holder.clear()
    assert kept() is None


def test_it_is_the_signal_that_was_dropped_which_is_sent_again() -> None:
    """Not the one that ended the run: a terminal that is gone does not leave the report."""
    with Interrupts() as interrupts:
        with pytest.raises(EndedError):
            signal.raise_signal(signal.SIGHUP)
        drawing()
        with pytest.raises(EndedError):
            _let_go_and_wait_for(signal.SIGTERM)
        assert interrupts.exit_code == ExitCode.HUNG_UP


def _let_go_and_wait_for(number: signal.Signals) -> None:
    _dropped(number)
    time.sleep(10)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_that_is_dropped_in_the_last_moment_ends_the_command_around(
    number: signal.Signals,
) -> None:
    """The run within it is left before it is sent again: nobody would have heard of it."""
    with Interrupts() as outer:
        with pytest.raises(EndedError), Interrupts():
            _dropped(number)
        assert outer.exit_code == 128 + number
    assert [signal.getsignal(one) for one in NUMBERS[1:]] == [signal.SIG_DFL] * 2


ASKS = """
import contextlib
from experiment.process.interrupts import EndedError, Interrupts, answer
from experiment.process.streams import ignore_broken_pipe

with ignore_broken_pipe():
    while True:
        with contextlib.suppress(EndedError), Interrupts():
            print("asked", flush=True)
            answer(input)
"""


def test_a_signal_in_the_moment_in_which_an_answer_is_awaited_is_heard() -> None:
    """Else Enter would decide: input() drops what flushing raises, and a read sleeps on."""
    ours, theirs = pty.openpty()
    asks = subprocess.Popen([sys.executable, "-c", ASKS], stdin=theirs, stdout=theirs)
    os.close(theirs)
    try:
        for tried in range(10000):
            read_until(ours, "asked")
            until = time.perf_counter_ns() + tried % 400 * 250
            while time.perf_counter_ns() < until:
                pass
            asks.send_signal(signal.SIGTERM)
        read_until(ours, "asked")
    finally:
        asks.kill()
        asks.wait()
        os.close(ours)


def test_without_a_thread_to_send_it_again_it_comes_behind_the_next_shield(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none_more(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("_thread.start_new_thread", none_more)
    with Interrupts() as interrupts:
        _dropped(signal.SIGTERM)
        with pytest.raises(EndedError), shielded():
            pass
        with shielded():
            pass  # it came once
        assert interrupts.exit_code == ExitCode.TERMINATED


def test_a_signal_that_is_sent_again_twice_is_no_second_wish(
    below: subprocess.Popen[bytes],
) -> None:
    """Two callbacks drop it, each is answered by a thread, and both come through."""
    with Interrupts() as interrupts:
        with pytest.raises(EndedError):
            signal.raise_signal(signal.SIGINT)
        interrupts._again = True
        signal.raise_signal(signal.SIGINT)
        time.sleep(0.05)
        assert below.poll() is None


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_at_any_step_of_entering_and_leaving_is_heard_once(
    number: signal.Signals,
) -> None:
    """Whatever is left half done: the command around has the signal, and its hands go off all."""
    hook = sys.unraisablehook
    parts = {Interrupts.__enter__, Interrupts.__exit__, Interrupts._leave}
    tried = 0
    for moment in each_step(parts, lambda: signal.raise_signal(number)):
        heard, tried = False, tried + 1
        with Interrupts() as outer, moment():
            try:
                with Interrupts():
                    pass
            except EndedError:
                heard = True
        assert outer.exit_code == (128 + number if heard else None)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert {signal.getsignal(one) for one in NUMBERS[1:]} == {signal.SIG_DFL}
        assert (sys.unraisablehook, module._active) == (hook, [])
    assert not heard, "the last one is without a signal"
    assert tried > 100


def test_what_else_a_callback_raises_is_told_as_ever(capfd: pytest.CaptureFixture[str]) -> None:
    hook = sys.unraisablehook
    sys.unraisablehook = sys.__unraisablehook__  # pytest has one of its own
    try:
        with Interrupts():
            watched = _Watched()
            kept = weakref.ref(watched, lambda _: 1 // 0)
            del watched
        assert sys.unraisablehook is sys.__unraisablehook__
    finally:
        sys.unraisablehook = hook
    assert kept() is None
    assert "ZeroDivisionError" in capfd.readouterr().err
