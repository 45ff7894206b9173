"""Processes that are started before their turn: each runs or is ended, and failing is reported."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from real_parts import is_gone, session_in

from experiment.config.schema import Config
from experiment.events import ArmFailed, ArmSkipped, Notice, Reading, Stage
from experiment.files.code_cache import numba_cache
from experiment.machine.environment import Environment
from experiment.memory.monitor import Monitor
from experiment.process.child_end import ChildEnd
from experiment.record.log import read_record
from experiment.runner import session as runner
from experiment.runner.session import Session
from experiment.text.errors import ExitCode, user_error
from experiment.text.messages import Message, message

MODULE = "scripted_child"
ARM = "paged"
CONFIG = Config.model_validate({"run": {"arms": [ARM], "device": "cpu", "threads": 1}})


@pytest.fixture(autouse=True)
def _scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arms are scripted children."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    monkeypatch.setattr(runner, "ARM", MODULE)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with session_in(tmp_path) as made:
        yield made


def ahead(session: Session) -> list[int]:
    return [child.pid for child in session._ahead.values()]


def run(session: Session, script: str, **more: Any) -> ChildEnd:
    return session._run(ARM, MODULE, {"arm": ARM, "script": script}, 60, None, **more)


@pytest.mark.parametrize("how", ["skipped", "refused"])
def test_an_arm_that_is_not_run_leaves_no_process_that_was_started_ahead_for_it(
    how: str, session: Session, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan(*_: object) -> Message:
        if how == "refused":
            raise user_error("error.no_arms")
        return message("skip.compiled")

    session.start_arm([ARM], CONFIG)
    (pid,) = ahead(session)
    assert psutil.pid_exists(pid)
    monkeypatch.setattr(runner, "plan_launch", plan)
    given: Any = None  # nothing of it is looked at
    failed = session.run_arm(ARM, CONFIG, environment, given)
    assert (failed is not None) == (how == "refused")
    assert ahead(session) == []
    assert is_gone(pid)
    if how == "skipped":
        assert [e.arm for e in read_record(session.directory).of(ArmSkipped)] == [ARM]


def test_loops_that_cannot_be_compiled_are_the_arms_to_tell_of(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    numba_cache().mkdir()
    broken = tmp_path / "numba"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('no LLVM')", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    session.start_compiling(["paged"], CONFIG, "cpu")
    session.finish_compiling()
    assert ahead(session) == []
    assert "no LLVM" in (session.logs / "loops.log").read_text(encoding="utf-8")
    assert read_record(session.directory).of(ArmFailed) == []


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


def test_the_process_that_was_started_ahead_is_the_one_that_runs(session: Session) -> None:
    """In a session of its own, so that Ctrl-C in a terminal reaches the runner alone."""
    session.start_arm([ARM], CONFIG)
    (pid,) = ahead(session)
    assert os.getsid(pid) == pid != os.getsid(0)
    assert run(session, "rubbish").ok
    assert ahead(session) == []
    assert is_gone(pid)
