"""Children that misbehave, as real processes: what the runner sees, and that nothing is left."""

from __future__ import annotations

import collections
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import psutil
import pytest
from real_parts import is_gone

from experiment.config.schema import make_config
from experiment.events import ArmFailed, Notice, RunStarted, Stage, StageEntered
from experiment.process import child as process
from experiment.process.child import Child, ChildEvent, ChildTimeoutError
from experiment.process.child_end import ChildEnd, end_reason
from experiment.process.environment import hub_secrets
from experiment.record.log import EventLog, read_record
from experiment.runner import session as runner
from experiment.runner.interleave import ArmCoroutine
from experiment.runner.session import Session
from experiment.text.errors import ExitCode
from experiment.text.messages import message

MODULE = "scripted_child"
LONG, SHORT = 60.0, 0.5


@pytest.fixture(autouse=True)
def _child_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


@pytest.fixture
def log_path(tmp_path: Path) -> Path:
    return tmp_path / "child.log"


@pytest.fixture
def start(log_path: Path) -> Callable[..., Child]:
    def start(script: str, timeout_s: float = LONG, env: dict[str, str] | None = None) -> Child:
        return Child(MODULE, {"arm": "scripted", "script": script}, log_path, timeout_s, env)

    return start


Start = Callable[..., Child]


def said(told: list[ChildEvent]) -> list[dict[str, int]]:
    return [event.text.params for event, _ in told if isinstance(event, Notice)]


def until_first(child: Child) -> list[ChildEvent]:
    """Events up to the first, so that the child is known to be in its script."""
    return [next(child.events())]


def test_rubbish_lands_in_the_log_and_events_go_on(start: Start, log_path: Path) -> None:
    with start("rubbish") as child:
        events = list(child.events())
        assert child.wait() == 0
    assert said(events) == [{"n": 1}]
    log = log_path.read_bytes()
    assert b"not an event: rubbish in the pipe" in log
    assert b"not an event: \xff\xfe" in log
    assert b"not an event: {}" in log
    assert b"a library prints to stdout" in log


def test_no_secret_is_left_of_what_is_cut(
    start: Start, log_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "zq" * 40)
    with start("secrets", env=hub_secrets()) as child:
        events = list(child.events())
    failed = [event for event, _ in events if isinstance(event, ArmFailed)]
    assert "zq" not in failed[0].reason.params["error"]
    assert b"not an event" in log_path.read_bytes()
    assert b"zq" not in log_path.read_bytes()


def test_a_child_that_does_not_read_its_task_runs_into_its_time_limit(
    log_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped before it could; a pipe holds less than a task of many requests."""
    monkeypatch.setattr(process, "_GRACE_S", 0.3)
    with Child(MODULE, None, log_path, LONG) as child:
        os.kill(child.pid, signal.SIGSTOP)
        rescue = threading.Timer(20, os.kill, (child.pid, signal.SIGKILL))  # from a test that fails
        rescue.start()
        began = time.monotonic()
        child.begin({"arm": "scripted", "script": "hang", "prompt": "x" * (1 << 20)}, 0.3)
        with pytest.raises(ChildTimeoutError):
            list(child.events())
        assert time.monotonic() - began < 10
        rescue.cancel()
        pid = child.pid
    assert is_gone(pid)


def test_a_child_that_never_stops_talking_runs_into_its_time_limit(start: Start) -> None:
    with start("chatter", SHORT) as child:
        deadline = time.monotonic() + 20
        talk = itertools.takewhile(lambda _: time.monotonic() < deadline, child.events())
        with pytest.raises(ChildTimeoutError):
            collections.deque(talk, maxlen=0)
        pid = child.pid
    assert is_gone(pid)


def test_time_in_which_the_runner_itself_stood_still_does_not_count(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-Z for an hour and `fg`: the child had its end long ago, or has waited for us."""
    monkeypatch.setattr(process, "_SUSPENDED_S", 0.4)
    with start("two_words") as child:
        events = child.events()
        next(events)
        child._deadline = time.monotonic() + 0.2
        time.sleep(0.6)
        assert said(list(events)) == [{"n": 2}]
        assert child.wait() == 0


def test_the_limit_of_an_arm_is_for_each_time_that_it_runs_the_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = []

    def course(*args: object, **_: object) -> ArmCoroutine[ChildEnd]:
        limits.append(args[4])
        return ChildEnd(0, {})
        yield

    monkeypatch.setattr(Session, "_child_coroutine", course)
    monkeypatch.setattr(runner, "plan_launch", lambda *_: SimpleNamespace(module="", task={}))
    monkeypatch.setattr(runner, "DeviceWatch", lambda *_: MagicMock())
    with EventLog(tmp_path) as log:
        session = Session(tmp_path, log, lambda event: None)
        for asked in ({}, {"name": "capacity", "repeats": 4}):
            config = make_config({"run": {"arm_timeout_s": 7}, "experiment": asked})
            session.run_arm("paged", config, MagicMock(), MagicMock())
    assert limits == [7, 7 * 5]


def test_a_child_that_ignores_terminate_is_killed(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_GRACE_S", 0.3)
    with start("ignore_terminate") as child:
        until_first(child)
        child.kill()
        assert child.wait() == -signal.SIGKILL


def test_a_child_that_closes_its_pipe_and_stays_is_ended(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_LINGER_S", 0.3)
    with start("linger") as child:
        assert said(list(child.events())) == [{"n": 1}]
        assert child.wait() == -signal.SIGTERM
        assert child.lingered


@pytest.mark.parametrize("script", ["grandchild", "stranger"])
def test_leaving_the_block_ends_the_child_and_what_it_started(script: str, start: Start) -> None:
    with start(script) as child:
        grandchild = said(until_first(child))[0]["pid"]
        assert psutil.pid_exists(grandchild)
        pid = child.pid
    assert is_gone(pid)
    assert is_gone(grandchild)


def test_who_holds_the_pipe_of_a_dead_child_is_not_waited_for(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_GRACE_S", 0.2)
    with start("heir", timeout_s=20) as child:
        (told,) = said(list(child.events()))  # and not ChildTimeoutError
        assert child.wait() == -signal.SIGKILL
    assert is_gone(told["pid"])


@pytest.mark.parametrize("broken_off", [False, True])
def test_what_a_child_had_said_when_nobody_listened_any_more_is_there(
    broken_off: bool, start: Start
) -> None:
    with start("two_words") as child:
        events = child.events()
        next(events)
        if not broken_off:
            child.mark_processed()
        assert child._process.wait(20) == 0
        assert said(child.unprocessed()) == [{"n": 1}, {"n": 2}][not broken_off :]
        assert child.unprocessed() == []


def test_a_child_stands_still_at_a_stage_until_it_is_acknowledged(start: Start) -> None:
    with start("stages") as child:
        seen = []
        for event, _ in child.events():
            seen.append(event.stage if isinstance(event, StageEntered) else event.text.params["n"])
            if isinstance(event, StageEntered):
                assert child._queue.empty()
                child.acknowledge()
    assert seen == [Stage.START, 0, Stage.LOADED, 1]


def test_a_child_whose_runner_is_gone_ends_by_itself(start: Start) -> None:
    with start("stages") as child:
        until_first(child)
        assert child._process.stdin is not None
        child._process.stdin.close()
        assert child._process.wait(20) == ExitCode.INTERRUPTED


@pytest.mark.parametrize(
    ("script", "key", "code"),
    [
        ("fail", "failure.exception", ExitCode.INCOMPLETE),
        ("refuse", "error.no_arms", ExitCode.USAGE),
        ("run_out_of_memory", "failure.out_of_memory", ExitCode.INCOMPLETE),
        ("run_out_of_pinned_memory", "failure.out_of_memory", ExitCode.INCOMPLETE),
    ],
)
def test_a_child_says_itself_why_it_failed(start: Start, script: str, key: str, code: int) -> None:
    with start(script) as child:
        [(failed, _)] = child.events()
        assert isinstance(failed, ArmFailed)
        assert (failed.arm, failed.reason.key, failed.exit_code) == ("scripted", key, code)
        assert child.wait() == code


@pytest.mark.parametrize(
    ("script", "timeout_s", "key", "params"),
    [
        ("exit_7", LONG, "failure.exit", {"code": 7}),
        ("kill_itself", LONG, "failure.killed", {"signal": "SIGKILL"}),
        ("hang", SHORT, "failure.timeout", {"seconds": SHORT}),
        ("fail", LONG, "failure.exception", {"error": "RuntimeError: something broke"}),
    ],
)
def test_the_session_writes_down_how_a_child_ended(
    tmp_path: Path, script: str, timeout_s: float, key: str, params: dict[str, object]
) -> None:
    with EventLog(tmp_path) as log:
        session = Session(tmp_path, log, lambda event: None)
        session.emit(
            RunStarted(version="1", wall_ns=0, utc_offset_s=0, lang="en", command=[], config={})
        )
        task = {"arm": "scripted", "script": script}
        end = session._run("scripted", MODULE, task, timeout_s, None)
        assert not end.ok
        failure = session._failure("scripted", end)
    assert (failure.reason.key, failure.reason.params) == (key, params)
    assert read_record(tmp_path).of(ArmFailed) == [failure]
    assert (tmp_path / "logs" / "scripted.log").exists()


def test_any_signal_has_a_name() -> None:
    assert end_reason(-signal.SIGSEGV).params == {"signal": "SIGSEGV"}
    assert end_reason(-signal.SIGSEGV).key == "failure.signal"
    assert end_reason(-signal.SIGTERM) == message("failure.ended", signal="SIGTERM")
