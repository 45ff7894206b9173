"""Children that misbehave, as real processes: what the runner sees, and what is theirs."""

from __future__ import annotations

import collections
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import psutil
import pytest
from real_parts import is_gone, session_in

from experiment.config.schema import make_config
from experiment.events import ArmFailed, Notice, Stage, StageEntered
from experiment.files.code_cache import TORCH_CACHE
from experiment.files.scratch import make_scratch
from experiment.files.user_cache import TEMPORARY
from experiment.machine import background_load
from experiment.machine.thread_variables import WAITING, has_background_load, thread_variables
from experiment.process import child as process
from experiment.process import shared_memory
from experiment.process.child import Child, ChildEvent, ChildTimeoutError
from experiment.process.child_end import ChildEnd, end_reason
from experiment.process.environment import child_environment, hub_secrets
from experiment.process.process_tree import end_processes
from experiment.record.log import EventLog, read_record
from experiment.runner import session as runner
from experiment.runner.interleave import ArmCoroutine
from experiment.runner.session import Session
from experiment.text.errors import ExitCode, UserError
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


def test_a_stopped_process_is_ended_and_not_killed() -> None:
    """It receives SIGTERM when it continues."""
    with subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"]) as stopped:
        stopped.send_signal(signal.SIGSTOP)
        end_processes([psutil.Process(stopped.pid)])
        assert stopped.wait() == -signal.SIGTERM


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
    monkeypatch.setattr(runner, "DeviceWatch", lambda *_, **__: MagicMock())
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
    ],
)
def test_the_session_writes_down_how_a_child_ended(
    tmp_path: Path, script: str, timeout_s: float, key: str, params: dict[str, object]
) -> None:
    with session_in(tmp_path) as session:
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


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    has_background_load.cache_clear()
    yield
    has_background_load.cache_clear()


def looks(monkeypatch: pytest.MonkeyPatch, *cores: float | None) -> None:
    left = list(cores)
    monkeypatch.setattr(background_load, "others_cores", lambda: left.pop(0))


@pytest.mark.parametrize(
    ("seen", "busy"), [((2.0, 2.0, 2.0), True), ((1.0, 0.1), False), ((None,), True)]
)
def test_spinning_is_bounded_on_a_busy_machine_alone(
    monkeypatch: pytest.MonkeyPatch, seen: tuple[float | None, ...], busy: bool
) -> None:
    """A busy moment is no busy machine; what cannot be seen may be one."""
    looks(monkeypatch, *seen)
    assert (WAITING.items() <= thread_variables(2, {}).items()) is busy


def test_what_the_person_has_set_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    looks(monkeypatch)  # nobody looks
    assert "KMP_BLOCKTIME" not in thread_variables(2, {"OMP_WAIT_POLICY": "active"})


def test_all_arms_of_a_run_wait_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    looks(monkeypatch, 2.0, 2.0, 2.0)
    first = thread_variables(2, {})
    looks(monkeypatch)
    assert thread_variables(2, {}) == first


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the system puts temporary files, for this test; its path is short."""
    with tempfile.TemporaryDirectory(prefix="tmp-") as made:
        monkeypatch.setattr(tempfile, "tempdir", made)
        monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
        yield Path(made)


def run(script: str, log: Path) -> list[Path]:
    """Where a child said that it put its files."""
    with Child("scripted_child", {"arm": "scripted", "script": script}, log, 60.0) as child:
        said = [event for event, _ in child.events() if isinstance(event, Notice)]
    return [Path(event.text.params["place"]) for event in said if "place" in event.text.params]


@pytest.mark.parametrize(("script", "places"), [("leave_files", 1), ("kill_itself", 0)])
def test_what_a_child_leaves_among_temporary_files_goes_with_it(
    script: str, places: int, temporary: Path, tmp_path: Path
) -> None:
    assert [place.parent for place in run(script, tmp_path / "log")] == [temporary] * places
    assert list(temporary.iterdir()) == []


def test_nothing_stays_of_one_that_cannot_be_started(temporary: Path, tmp_path: Path) -> None:
    with (
        pytest.raises(UserError),
        Child("scripted_child", {}, tmp_path / "log", 60.0, python="/nobody/here"),
    ):
        raise AssertionError("it was started")
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("where", ["x" * 60, "gone"])
def test_without_a_place_for_its_temporary_files_a_child_runs_all_the_same(
    where: str, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the directory that everybody has: a socket's path has no room in ours, or it is gone."""
    ours, everybodys = temporary / where, temporary / "x"
    for made in (everybodys, *([ours] if where != "gone" else [])):
        made.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(ours))
    monkeypatch.setenv("TMPDIR", str(everybodys))
    assert make_scratch() is None
    assert run("leave_files", tmp_path / "log") == [everybodys]


def test_what_torch_compiles_is_kept_where_something_can_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else torch decides, as without us: vLLM must be able to make it."""
    monkeypatch.delenv(TORCH_CACHE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kept = tmp_path / "cache" / "pagedkv-lab" / "torchinductor"
    assert child_environment({})[TORCH_CACHE] == str(kept)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "cache"))
    monkeypatch.setenv(TEMPORARY, str(tmp_path / "file"))
    assert TORCH_CACHE not in child_environment({})
    monkeypatch.setenv(TORCH_CACHE, "/chosen")
    assert child_environment({})[TORCH_CACHE] == "/chosen"


FOREVER = "import time; time.sleep(600)"
SHARED = Path("/dev/shm")


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """One of ours that is no child's, in a session of its own."""
    process = subprocess.Popen([sys.executable, "-c", FOREVER], start_new_session=True)
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with session_in(tmp_path) as made:
        yield made


def told(session: Session) -> dict[str, Any]:
    """What the child said first."""
    return read_record(session.directory).of(Notice)[0].text.params


def test_what_began_a_session_of_its_own_is_ended_though_the_child_is_dead(
    start: Start, stranger: subprocess.Popen[bytes]
) -> None:
    """Its parent is dead and its session another one: nothing leads from the child to it."""
    with start("grandchild") as neighbour:
        others = said(until_first(neighbour))[0]["pid"]
        with start("runaway_twice_away") as child:
            (word,) = said(list(child.events()))
            child.wait()
            assert psutil.pid_exists(word["pid"])
            assert os.getsid(word["pid"]) != child.pid
        assert is_gone(word["pid"])
        assert neighbour._process.poll() is None
        assert psutil.Process(others).status() != psutil.STATUS_ZOMBIE
    assert is_gone(others)
    assert stranger.poll() is None


@pytest.mark.skipif(not SHARED.is_dir(), reason="where Linux keeps it")
def test_shared_memory_of_a_child_that_died_is_given_back(session: Session) -> None:
    """It is mapped by nobody, and known by its name alone."""
    session._run("paged", MODULE, {"arm": "paged", "script": "register_and_die"}, 60, None)
    place = SHARED / told(session)["name"]
    try:
        assert not place.exists()
    finally:
        place.unlink(missing_ok=True)


@pytest.mark.skipif(not SHARED.is_dir(), reason="where Linux keeps it")
@pytest.mark.parametrize("inside", [False, True])
def test_files_that_people_keep_there_stay(
    inside: bool, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model in memory is read by the arm, and its weights are mapped as shared memory is."""
    monkeypatch.setattr(shared_memory, "_recorded", [])  # as in a program that has just begun
    directory = SHARED / f"pagedkv-test-{os.getpid()}"
    file = directory / "model" if inside else SHARED / f"pagedkv-test-model-{os.getpid()}"
    directory.mkdir()
    try:
        if not inside:
            file.write_bytes(bytes(4096))
        monkeypatch.setenv("PAGEDKV_MAPS", str(file))
        with start("map_a_file") as child:
            if inside:
                file.write_bytes(bytes(4096))
            child.acknowledge()
            until_first(child)
            assert str(file) in Path(f"/proc/{child.pid}/maps").read_text(encoding="utf-8")
            child.record_shared_memory()
            child.kill()
        assert file.exists()
    finally:
        file.unlink(missing_ok=True)
        directory.rmdir()
