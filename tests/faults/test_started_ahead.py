"""Processes that are started before their turn, and signals in the moments around a process.

Whoever was started is ended, and what a process said is written down, whenever a signal comes.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psutil
import pytest
from event_makers import head
from real_parts import is_gone, session_in

from experiment.config.schema import Config
from experiment.events import (
    ArmFailed,
    ArmSkipped,
    Event,
    Notice,
    Reading,
    Stage,
)
from experiment.machine.environment import Environment
from experiment.memory.monitor import Monitor
from experiment.process import child as process
from experiment.process.child import Child
from experiment.process.child_end import ChildEnd
from experiment.process.interrupts import EndedError, Interrupts
from experiment.record.log import EventLog, read_record
from experiment.runner import session as runner
from experiment.runner.session import Session
from experiment.text.errors import ExitCode, user_error
from experiment.text.messages import Message, message
from experiment.workload.prepared import Prepared

MODULE = "scripted_child"
ARM = "paged"
CONFIG = Config.model_validate({"run": {"arms": [ARM], "device": "cpu", "threads": 1}})


@pytest.fixture(autouse=True)
def _scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Arms are scripted children, and a signal is ours to answer."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    monkeypatch.setattr(runner, "ARM", MODULE)
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with session_in(tmp_path) as made:
        yield made


@pytest.fixture
def prepared() -> Prepared:
    _, model, workload = head()
    return Prepared("nowhere", model, workload)  # type: ignore[arg-type]


def ahead(session: Session) -> list[int]:
    return [child.pid for child in session._ahead.values()]


def below() -> list[int]:
    return [process.pid for process in psutil.Process().children(recursive=True)]


def run(session: Session, script: str, **more: Any) -> ChildEnd:
    return session._run(ARM, MODULE, {"arm": ARM, "script": script}, 60, None, **more)


def at(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same, and a signal as soon as it is done."""

    def and_then(*words: Any, **more: Any) -> Any:
        found = function(*words, **more)
        signal.raise_signal(signal.SIGTERM)
        return found

    return and_then


@pytest.mark.parametrize("how", ["skipped", "refused"])
def test_an_arm_that_is_not_run_leaves_no_process_that_was_started_ahead_for_it(
    how: str, session: Session, environment: Environment, prepared: Prepared,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def plan(*_: object) -> Message:
        if how == "refused":
            raise user_error("error.no_arms")
        return message("skip.compiled")

    session.start_arm([ARM], CONFIG)
    (pid,) = ahead(session)
    assert psutil.pid_exists(pid)
    monkeypatch.setattr(runner, "plan_launch", plan)
    failed = session.run_arm(ARM, CONFIG, environment, prepared)
    assert (failed is not None) == (how == "refused")
    assert ahead(session) == []
    assert is_gone(pid)
    if how == "skipped":
        assert [e.arm for e in read_record(session.directory).of(ArmSkipped)] == [ARM]


def test_the_process_that_was_started_ahead_is_the_one_that_runs(session: Session) -> None:
    session.start_arm([ARM], CONFIG)
    before = below()
    end = run(session, "rubbish")
    assert end.ok
    assert ahead(session) == []
    assert set(below()) <= set(before)
    assert not (session.logs / "scripted.log").exists()


def test_vllm_is_not_started_ahead(session: Session) -> None:
    """Another interpreter runs it."""
    session.start_arm(["vllm", ARM], CONFIG)
    session.start_arm([], CONFIG)
    assert ahead(session) == []


def test_loops_are_compiled_while_a_run_is_prepared_and_once_on_a_machine(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    session.start_compiling(["contiguous.batch"], CONFIG, "cpu")
    session.start_compiling(["paged"], CONFIG, "cuda")
    assert ahead(session) == []
    session.start_compiling(["contiguous.batch", "paged"], CONFIG, "cpu")
    (pid,) = ahead(session)
    session.finish_compiling()
    assert is_gone(pid)
    kept = {path.name.partition(".")[0] for path in tmp_path.rglob("*.nbc")}
    assert {"attention_kernel", "layer_step", "write"} <= kept
    session.start_compiling(["paged"], CONFIG, "cpu")
    session.finish_compiling()
    assert ahead(session) == []
    assert read_record(session.directory).of(ArmFailed) == []


def test_loops_that_cannot_be_compiled_are_the_arms_to_tell_of(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "numba"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('no LLVM')", encoding="utf-8")
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    session.start_compiling(["paged"], CONFIG, "cpu")
    session.finish_compiling()
    assert ahead(session) == []
    assert "no LLVM" in (session.logs / "loops.log").read_text(encoding="utf-8")
    assert read_record(session.directory).of(ArmFailed) == []


def test_a_signal_while_one_is_started_ahead_leaves_it_to_be_ended(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Child, "__enter__", at(Child.__enter__))
    with Interrupts(), pytest.raises(EndedError):
        session.start_arm([ARM], CONFIG)
    (pid,) = ahead(session)
    session.close()
    assert is_gone(pid)


def test_a_signal_before_its_turn_leaves_it_to_be_ended(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.start_arm([ARM], CONFIG)
    (pid,) = ahead(session)
    monkeypatch.setattr(Child, "begin", at(Child.begin))
    with Interrupts(), pytest.raises(EndedError):
        run(session, "hang")
    session.close()
    assert is_gone(pid)


def test_a_signal_while_they_are_ended_leaves_none(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.start_arm([ARM], CONFIG)
    session.start_arm(["slabs"], CONFIG)
    pids = ahead(session)
    assert len(pids) == 2
    monkeypatch.setattr(Child, "__exit__", at(Child.__exit__))
    with Interrupts(), pytest.raises(EndedError):
        session.close()
    assert ahead(session) == []
    assert all(is_gone(pid) for pid in pids)


@pytest.mark.parametrize("step", ["_made", "_start"])
def test_a_signal_while_a_process_is_started_leaves_none(
    step: str, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(below())
    monkeypatch.setattr(Child, step, at(getattr(Child, step)))
    with Interrupts(), pytest.raises(EndedError):
        run(session, "hang")
    assert all(is_gone(pid) for pid in set(below()) - before)


def test_a_signal_while_a_process_is_ended_waits_until_it_has(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids: list[int] = []

    kill = Child._kill

    def late(self: Child) -> None:
        pids.append(self.pid)
        signal.raise_signal(signal.SIGTERM)
        kill(self)

    monkeypatch.setattr(Child, "_kill", late)
    with Interrupts(), pytest.raises(EndedError):
        session._run(ARM, MODULE, {"arm": ARM, "script": "hang"}, 1, None)
    (pid,) = pids  # the first time was enough
    assert is_gone(pid)


def test_shared_memory_of_what_a_second_signal_kills_is_given_back(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes before anybody has looked what the process holds."""
    names: list[str] = []
    kill = Child._kill

    def listener(event: Event) -> None:
        assert isinstance(event, Notice)
        names.append(event.text.params["name"])
        signal.raise_signal(signal.SIGTERM)

    def late(self: Child) -> None:
        assert Path("/dev/shm", names[0]).exists()
        signal.raise_signal(signal.SIGTERM)
        kill(self)

    session._listener = listener
    monkeypatch.setattr(Child, "_kill", late)
    before = set(below())
    with Interrupts(), pytest.raises(EndedError):
        run(session, "share")
    assert not Path("/dev/shm", names[0]).exists()
    assert all(is_gone(pid) for pid in set(below()) - before)


def test_a_signal_behind_the_end_of_a_process_waits_until_its_files_are_closed(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[Child] = []
    leave = Child._leave
    monkeypatch.setattr(Child, "_leave", lambda self: (left.append(self), leave(self)))
    monkeypatch.setattr(process, "session_members", at(process.session_members))
    with Interrupts(), pytest.raises(EndedError):
        run(session, "rubbish")
    (child,) = left
    assert child._log.closed


def test_a_signal_as_sampling_begins_ends_it(
    session: Session, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Monitor] = []

    def monitor(pid: int) -> Monitor:
        made.append(Monitor(ARM, pid, environment, session.emit, 20))
        return made[0]

    monkeypatch.setattr(Monitor, "start", at(Monitor.start))
    with Interrupts(), pytest.raises(EndedError):
        session._run(ARM, MODULE, {"arm": ARM, "script": "hang"}, 60, monitor)
    assert not made[0]._thread.is_alive()


def test_what_a_process_said_is_written_down_though_a_signal_comes(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is out of the pipe and not yet in the log."""
    write = EventLog.write

    def late(self: EventLog, event: Event, line: bytes | None = None) -> None:
        signal.raise_signal(signal.SIGTERM)
        write(self, event, line)

    monkeypatch.setattr(EventLog, "write", late)
    with Interrupts(), pytest.raises(EndedError):
        run(session, "hang")
    monkeypatch.undo()
    assert [e.text.key for e in read_record(session.directory).of(Notice)] == ["said"]


@pytest.mark.parametrize("how", ["a signal", "its time is over"])
def test_what_a_process_had_said_when_it_was_ended_is_written_down(
    how: str, session: Session
) -> None:
    """Nobody had come to it by then: two words are said, and it ends behind the first one."""
    children: list[Child] = []

    def listener(event: Event) -> None:
        (child,) = children
        child._reader.join(20)
        if how == "a signal":
            signal.raise_signal(signal.SIGTERM)
        child._deadline = 0.0

    class Seen(Child):
        def __enter__(self) -> Child:
            children.append(self)
            return super().__enter__()

    session._listener = listener
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(runner, "Child", Seen)
        with Interrupts(), pytest.raises(EndedError) if how == "a signal" else nullcontext():
            run(session, "two_words")
    record = read_record(session.directory)
    assert [e.text.params for e in record.of(Notice)] == [{"n": 1}, {"n": 2}]
    assert [e.reason.key for e in record.of(ArmFailed)] == (
        [] if how == "a signal" else ["failure.timeout"]
    )


@pytest.mark.parametrize("thread", ["_read", "_send"])
def test_a_process_without_a_thread_to_listen_to_it_is_an_arm_that_failed(
    thread: str, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container counts threads as it counts processes."""
    before, begin = set(below()), threading.Thread.start

    def start(self: threading.Thread) -> None:
        if getattr(self._target, "__name__", "") == thread:  # type: ignore[attr-defined]
            raise RuntimeError("can't start new thread")
        begin(self)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        if thread == "_read":
            session.start_arm([ARM], CONFIG)
            assert ahead(session) == []
        failed = session._failure(ARM, run(session, "hang"))
    assert (failed.reason.key, failed.reason.params) == ("failure.not_started", {"code": "EAGAIN"})
    assert all(is_gone(pid) for pid in set(below()) - before)
    assert run(session, "rubbish").ok


def test_without_a_thread_to_sample_in_the_record_says_that_samples_are_missing(
    session: Session, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = threading.Thread.start

    def start(self: threading.Thread) -> None:
        if self.name.startswith("memory-"):
            raise RuntimeError("can't start new thread")
        begin(self)

    monkeypatch.setattr(threading.Thread, "start", start)

    def monitor(pid: int) -> Monitor:
        return Monitor(ARM, pid, environment, session.emit, 20)

    end = session._run(ARM, MODULE, {"arm": ARM, "script": "stages"}, 60, monitor)
    assert end.ok
    record = read_record(session.directory)
    assert "usage.sampler_ended" in [e.text.key for e in record.of(Notice)]
    assert {e.stage for e in record.of(Reading)} == {Stage.START, Stage.LOADED}


def test_a_signal_while_a_run_goes_on_does_not_tear_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was waiting is written whole: the arms behind it belong to another stretch."""
    with EventLog(tmp_path) as log:
        log.write(head()[0])
    with EventLog(tmp_path, resume=True) as log:
        session = Session(tmp_path, log, lambda event: None, 2)
        for number in range(3):
            session.emit(Notice(text=message("note.busy", load=number)))
        append = EventLog._append

        def late(self: EventLog, line: bytes) -> None:
            append(self, line)
            signal.raise_signal(signal.SIGTERM)

        monkeypatch.setattr(EventLog, "_append", late)
        with Interrupts(), pytest.raises(EndedError):
            session.begin()
        assert log.begun
    assert len(read_record(tmp_path).of(Notice)) == 3


def test_a_process_that_the_system_does_not_make_is_an_arm_that_failed(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No memory for one more, or an interpreter that was removed: the other arms run."""
    with monkeypatch.context() as patched:
        patched.setattr(sys, "executable", "/nowhere/python")
        session.start_arm([ARM], CONFIG)
        assert ahead(session) == []
        failed = session._failure(ARM, run(session, "rubbish"))
    assert (failed.reason.key, failed.exit_code) == ("failure.not_started", ExitCode.INCOMPLETE)
    assert read_record(session.directory).of(ArmFailed) == [failed]
    assert run(session, "rubbish").ok


def test_children_of_these_tests_are_in_sessions_of_their_own(session: Session) -> None:
    """So Ctrl-C in a terminal reaches the runner alone."""
    session.start_arm([ARM], CONFIG)
    (pid,) = ahead(session)
    assert os.getsid(pid) == pid != os.getsid(0)
