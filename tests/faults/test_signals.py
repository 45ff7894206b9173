"""Signals and streams of one command in this process: which raises, which waits, which kills.

At moments that a test from outside cannot choose; whole programs are in test_broken_runs.py.
"""

from __future__ import annotations

import errno
import os
import pty
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from programs import ROOT
from pydantic import field_serializer
from real_parts import is_gone

from experiment.events import Notice
from experiment.process.child import Child
from experiment.process.interrupts import (
    EndedError,
    Interrupts,
    read_answer,
    rendering_started,
    shielded,
)
from experiment.process.streams import ignore_broken_pipe
from experiment.record.log import EventLog
from experiment.runner.session import Session
from experiment.text.errors import ExitCode
from experiment.text.messages import Message, message

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def foreground() -> Iterator[None]:
    """Signals as they are there: a test run in the background has interrupts ignored."""
    before = {number: signal.getsignal(number) for number in NUMBERS}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in NUMBERS[1:]:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_that_the_parent_ignores_stays_ignored(number: signal.Signals) -> None:
    signal.signal(number, signal.SIG_IGN)
    with Interrupts() as interrupts:
        signal.raise_signal(number)
        assert interrupts.exit_code is None
    assert signal.getsignal(number) is signal.SIG_IGN


def test_a_repeated_sighup_neither_kills_nor_leaves_the_report() -> None:
    """The system sends it, and so do the shell and whatever ends a session."""
    words = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(words) as below, Interrupts() as interrupts:
        with pytest.raises(EndedError):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGHUP)
        time.sleep(0.05)
        assert below.poll() is None
        rendering_started()
        signal.raise_signal(signal.SIGHUP)
        assert interrupts.exit_code == ExitCode.TERMINATED
        below.kill()


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


def test_what_another_thread_shields_defers_no_signal() -> None:
    entered, leave = threading.Event(), threading.Event()

    def shield() -> None:
        with shielded():
            entered.set()
            leave.wait(10)

    with Interrupts():
        other = threading.Thread(target=shield)
        other.start()
        entered.wait(10)
        with pytest.raises(EndedError):
            signal.raise_signal(signal.SIGTERM)
        leave.set()
        other.join()


class TakenAndInterrupted:
    """The lock that subprocess keeps for each process: a signal comes just after it was taken."""

    comes = False

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def acquire(self, blocking: bool = True) -> bool:
        taken = self._lock.acquire(blocking, 10 if blocking else -1)
        assert taken or not blocking, "it is never released"
        if taken and TakenAndInterrupted.comes:
            TakenAndInterrupted.comes = False
            signal.raise_signal(signal.SIGTERM)
        return taken

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def test_a_signal_while_a_child_is_looked_at_does_not_keep_it_from_being_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between taking a lock and the block that releases it Python may raise, too."""
    monkeypatch.setattr(subprocess, "threading", SimpleNamespace(Lock=TakenAndInterrupted))
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    task = {"arm": "scripted", "script": "hang"}
    child = Child("scripted_child", task, tmp_path / "log", timeout_s=60)

    def run() -> None:
        with child:
            TakenAndInterrupted.comes = True
            list(child.events())

    with Interrupts() as interrupts:
        with pytest.raises(EndedError):
            run()
        assert interrupts.exit_code == ExitCode.TERMINATED
        assert is_gone(child.pid)


class Interrupted(Notice):
    """An event while which is encoded a signal comes; pydantic replaces its exception."""

    @field_serializer("text")
    def _text(self, text: Message) -> dict[str, Any]:
        signal.raise_signal(signal.SIGTERM)
        return text.model_dump()


def test_a_signal_while_an_event_is_encoded_ends_the_command_and_the_event_stands(
    tmp_path: Path,
) -> None:
    event = Interrupted(text=message("note.busy", load=1.0))
    with Interrupts() as interrupts, EventLog(tmp_path) as log:
        with pytest.raises(EndedError):
            Session(tmp_path, log, lambda _: None).emit(event)
        assert interrupts.exit_code == ExitCode.TERMINATED
    assert "note.busy" in log.path.read_text(encoding="utf-8")


def test_what_is_printed_at_the_very_end_is_not_lost_silently() -> None:
    """It stands in a buffer until then."""
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, str(ROOT / "run_experiment.py"), "--help", "--lang", "en"],
            stdout=full, stderr=subprocess.PIPE, encoding="utf-8", timeout=60, check=False,
        )  # fmt: skip
    assert (done.returncode, len(done.stderr.splitlines())) == (ExitCode.UNWRITABLE, 1)
    assert "the disk is full" in done.stderr


def a_closed_terminal() -> int:
    ours, theirs = pty.openpty()
    os.close(ours)
    return theirs


def test_what_a_thread_prints_to_a_closed_terminal_ends_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Displays are drawn by a thread; the error would end that one alone."""

    def print_and_wait() -> None:
        thread = threading.Thread(target=lambda: print("nobody reads this", flush=True))
        thread.start()
        thread.join()
        threading.Event().wait(10)

    file = os.fdopen(a_closed_terminal(), "w", encoding="utf-8", buffering=1)
    monkeypatch.setattr(sys, "stdout", file)
    with Interrupts() as interrupts, ignore_broken_pipe():
        with pytest.raises(EndedError):
            print_and_wait()
        print("nor this, and that is no error", flush=True)
        assert interrupts.exit_code == ExitCode.HUNG_UP


def fail() -> str:
    """What reading from a terminal that is gone, or from a failing disk, does."""
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("gone", [True, False])
def test_a_question_to_a_closed_terminal_ends_the_command(
    gone: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under `nohup` there is no signal; and a file that cannot be read is no terminal."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    (tmp_path / "answers").touch()
    given = a_closed_terminal() if gone else os.open(tmp_path / "answers", os.O_RDONLY)
    with os.fdopen(given, encoding="utf-8") as file, Interrupts() as taken:
        monkeypatch.setattr(sys, "stdin", file)
        with pytest.raises(EndedError if gone else OSError):
            read_answer(fail)
        assert taken.exit_code == (ExitCode.HUNG_UP if gone else None)
