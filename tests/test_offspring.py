"""Whatever a child started is ended with it, wherever it went, and nothing else is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from real_parts import is_gone, session_in
from test_process import MODULE, said, until_first

from experiment.events import Notice
from experiment.process import shared_memory
from experiment.process.child import Child
from experiment.record.log import read_record
from experiment.runner.session import Session

FOREVER = "import time; time.sleep(600)"
SHARED = Path("/dev/shm")
Start = Callable[[str], Child]


@pytest.fixture(autouse=True)
def _child_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


@pytest.fixture
def start(tmp_path: Path) -> Start:
    def start(script: str) -> Child:
        return Child(MODULE, {"script": script}, tmp_path / f"{script}.log", 60)

    return start


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


def kill(pid: int) -> None:
    """Of a test that failed."""
    if psutil.pid_exists(pid):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("how", ["killed", "twice_away"])
def test_what_began_a_session_of_its_own_is_ended_though_the_child_is_dead(
    how: str, start: Start, stranger: subprocess.Popen[bytes]
) -> None:
    """Its parent is dead and its session another one: nothing leads from the child to it."""
    with start("grandchild") as neighbour:
        others = said(until_first(neighbour))[0]["pid"]
        with start(f"runaway_{how}") as child:
            (word,) = said(list(child.events()))
            child.wait()
            assert psutil.pid_exists(word["pid"])
            assert os.getsid(word["pid"]) != child.pid
        try:
            assert is_gone(word["pid"])
        finally:
            kill(word["pid"])
        assert neighbour._process.poll() is None
        assert psutil.Process(others).status() != psutil.STATUS_ZOMBIE
    assert is_gone(others)
    assert stranger.poll() is None


@pytest.mark.skipif(not SHARED.is_dir(), reason="where Linux keeps it")
@pytest.mark.parametrize("script", ["share_and_die", "register_and_die"])
def test_shared_memory_of_a_child_that_died_is_given_back(script: str, session: Session) -> None:
    """It had nobody to do that for it, and of the dead nobody can ask what they had.

    Some of it is mapped by nobody, and known by its name alone.
    """
    session._run("paged", MODULE, {"arm": "paged", "script": script}, 60, None)
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
