"""What a process said, at every step of taking it: a signal between two of them loses nothing.

The interpreter is halted before each of its steps in turn; see :mod:`moments`.
"""

from __future__ import annotations

import queue
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from moments import each_step

from experiment.events import Event, Notice, RunStarted, encode
from experiment.process.child import Child, Said
from experiment.process.interrupts import EndedError, Interrupts
from experiment.record.log import EventLog, read_record
from experiment.runner.session import Session
from experiment.text.messages import message

pytestmark = pytest.mark.usefixtures("foreground")

WORDS = 2


def child_that_said(words: int, place: Path) -> Child:
    """A child that is dead and has said something, of which nobody has taken anything."""
    child = Child("none", None, place / "log", 60)
    child._queue, child._next = queue.SimpleQueue(), []
    for number in range(words):
        note = Notice(text=message("note.busy", load=number))
        child._queue.put(Said(note, encode(note).encode() + b"\n"))
    child._queue.put(None)
    child._looked = time.monotonic()
    child._deadline = child._looked + 60
    child._process = SimpleNamespace(poll=lambda: 0)  # type: ignore[assignment]
    child._reader = threading.Thread(target=str)
    child._reader.start()
    return child


def write_down(session: Session, child: Child) -> bool:
    """As a session does it; whether a signal came."""
    try:
        for _ in session._follow(child, None, {}, None):
            raise AssertionError("nobody waits for a turn")
    except EndedError:
        session._keep_rest(child)
        return True
    return False


def lost_at(steps: set[Callable[..., Any]], place: Path) -> tuple[list[int], int]:
    """The steps at which a signal made the log another one than it is, and how many were tried."""
    wrong, tried = [], 0
    for moment in each_step(steps, lambda: signal.raise_signal(signal.SIGTERM)):
        tried += 1
        directory = place / str(tried)
        directory.mkdir()
        with EventLog(directory) as log:
            session = Session(directory, log, _silent)
            started = {"version": "1", "wall_ns": 0, "utc_offset_s": 0, "lang": "en"}
            session.emit(RunStarted.model_validate({**started, "command": [], "config": {}}))
            child = child_that_said(WORDS, directory)
            with Interrupts(), moment():
                came = write_down(session, child)
        said = [note.text.params["load"] for note in read_record(directory).of(Notice)]
        if said != list(range(WORDS)):
            wrong.append(tried)
    assert not came, "the last one is without a signal"
    return wrong, tried


def _silent(_: Event) -> None:
    """Nobody listens."""


def test_at_no_step_a_signal_loses_what_a_process_said_or_writes_it_twice(tmp_path: Path) -> None:
    """Out of the queue and into the list is one of them: no signal can come in between."""
    wrong, tried = lost_at({Child.events, Child.taken, Session._follow}, tmp_path)
    assert wrong == []
    assert tried > 150


def test_two_steps_between_queue_and_list_would_be_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check itself: taken out in one step and kept in another, a word can be lost."""

    def events(child: Child) -> Any:
        while True:
            event = child._queue.get()
            child._next.append(event)
            if event is None:
                return
            yield event

    monkeypatch.setattr(Child, "events", events)
    wrong, _ = lost_at({events, Session._follow}, tmp_path)
    assert wrong
