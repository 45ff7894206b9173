"""Directories that fill up, close or go while a run writes into them: one clear line each."""

from __future__ import annotations

import errno
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from programs import ARMS, Starter, arm_ended, arm_steps
from sweeps import full

from experiment.analysis.conclusions import evaluate
from experiment.commands.main import main
from experiment.events import RunFinished
from experiment.record.log import EVENTS_FILE, read_record
from experiment.report import render as rendering
from experiment.text.errors import ExitCode, UserError

ROOT = Path(__file__).parents[2]
FIRST, SECOND = ARMS


def ask(*words: str) -> bool:
    """Whether the system does this for us; it does so for few."""
    if shutil.which(words[0]) is None:
        return False
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def can_be_drawn(run: Path, arms: int) -> None:
    assert len(evaluate(read_record(run)).arms) == arms
    assert main(["render", str(run), "--lang", "en"]) == ExitCode.OK
    assert (run / "report.html").exists()


def test_a_directory_that_is_moved_away_takes_the_record_with_it(
    start: Starter, tmp_path: Path
) -> None:
    program = start(pause_s=0.3)
    program.wait_for(arm_steps(FIRST))
    moved = program.out.rename(tmp_path / "moved")
    _, err = program.process.communicate(timeout=60)
    assert program.process.returncode == ExitCode.UNWRITABLE
    (line,) = err.splitlines()
    assert line.startswith(f"Error: Cannot write {program.out}: ")
    record = read_record(moved)
    # Of the second one the device was looked at; its process had no file to print into.
    assert [arm.status for arm in evaluate(record).arms] == ["finished", "failed"]
    assert record.damaged_lines == 0
    can_be_drawn(moved, 2)


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Path]:
    """A directory that nobody, not even root, may change once `chattr +i` was said."""
    out = tmp_path / "closed"
    out.mkdir()
    if not ask("chattr", "+i", str(out)):
        pytest.skip("this file system has no immutable directories, or we may not make one")
    ask("chattr", "-i", str(out))
    yield out
    ask("chattr", "-i", str(out))


@full
def test_a_directory_that_is_closed_while_it_is_written(start: Starter, closed: Path) -> None:
    program = start(pause_s=0.2, out=closed)
    program.wait_for(arm_ended(FIRST))
    assert ask("chattr", "+i", str(closed))
    code, _, err = program.end()
    assert code == ExitCode.UNWRITABLE
    (line,) = err.splitlines()
    assert line.startswith(f"Error: Cannot write {closed}: ")
    assert not (closed / "run.json").exists()
    assert ask("chattr", "-i", str(closed))
    assert read_record(closed).of(RunFinished)[-1].status == "complete"  # the log was open
    can_be_drawn(closed, 2)


@pytest.fixture
def small(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A disk of so many KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if not ask("mount", "-t", "tmpfs", "-o", f"size={request.param}k", "none", str(disk)):
        pytest.skip("we may not mount a file system")
    yield disk
    ask("umount", str(disk))


# The log of these arms has 23 KiB, run.json 33.
MID_RUN, WHILE_DRAWING = 16, 40


@full
@pytest.mark.parametrize("small", [MID_RUN, WHILE_DRAWING], indirect=True)
def test_a_disk_that_fills_up(start: Starter, small: Path, request: pytest.FixtureRequest) -> None:
    measured = request.node.callspec.params["small"] == WHILE_DRAWING
    program = start(pause_s=0.05, out=small / "out")
    code, _, err = program.end()
    assert code == ExitCode.UNWRITABLE
    (line,) = err.splitlines()
    assert "the disk is full" in line
    text = (small / "out" / EVENTS_FILE).read_bytes()
    assert text.endswith(b"\n")
    record = read_record(small / "out")
    assert record.damaged_lines == 0
    assert bool(record.of(RunFinished)) == measured
    assert not (small / "out" / "run.json").exists()
    assert ask("mount", "-o", "remount,size=8m", str(small))
    can_be_drawn(small / "out", len(evaluate(record).arms))


def test_a_file_that_may_grow_no_more_ends_the_run_as_a_full_disk_does(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever no file system may be mounted; and a report on a full disk is one line, too."""
    size = MID_RUN << 10
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (size, size))
    program = start(pause_s=0.05, preexec_fn=limit)
    code, _, err = program.end()
    assert code == ExitCode.UNWRITABLE
    (line,) = err.splitlines()
    assert str(program.out / EVENTS_FILE) in line
    assert 0 < (program.out / EVENTS_FILE).stat().st_size <= size
    record = read_record(program.out)
    assert record.damaged_lines == 0
    assert not record.of(RunFinished)
    draw_it_on_a_full_disk(program.out, monkeypatch)
    can_be_drawn(program.out, len(evaluate(record).arms))


def draw_it_on_a_full_disk(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(rendering, "write_summary", full)
        with pytest.raises(UserError) as caught:
            rendering.render(out, "en")
    assert caught.value.text.params["why"]["key"] == "error.os.ENOSPC"


def test_a_line_that_does_not_fit_is_taken_back(tmp_path: Path) -> None:
    """Also by a log that is written on once there is room again."""
    code = """
import resource, sys
from pathlib import Path
from experiment.events import Notice, RunFinished, RunStarted
from experiment.report import render as rendering
from experiment.text.errors import UserError
from experiment.text.messages import message
from experiment.record.log import EventLog
started = RunStarted(version="1", wall_ns=0, utc_offset_s=0, lang="en", command=[], config={})
with EventLog(Path(sys.argv[1])) as log:
    log.write(started)
    size = log.path.stat().st_size
    soft = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50, soft))
    try:
        log.write(Notice(text=message("note.busy", load=1)))
    except UserError as error:
        print(error.text.key, log.path.stat().st_size == size)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, soft))
    log.write(RunFinished(status="complete"))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True, text=True, cwd=ROOT, check=False,
        encoding="utf-8",
    )  # fmt: skip
    assert done.stdout.split() == ["error.record_unwritable", "True"], done.stderr
    record = read_record(tmp_path)
    assert record.damaged_lines == 0
    assert [event.event for event in record.events] == ["run_started", "run_finished"]
