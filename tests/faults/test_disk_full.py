"""Directories that fill up, close or go while a run writes into them: one clear line each."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from programs import ARMS, Starter, arm_ended, arm_steps

from experiment.analysis.conclusions import evaluate
from experiment.commands.main import main
from experiment.events import RunFinished
from experiment.record.log import EVENTS_FILE, read_record
from experiment.text.errors import ExitCode

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
    assert line.startswith(f"Error: {program.out} cannot be written: ")
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


def test_a_directory_that_is_closed_while_it_is_written(start: Starter, closed: Path) -> None:
    program = start(pause_s=0.2, out=closed)
    program.wait_for(arm_ended(FIRST))
    assert ask("chattr", "+i", str(closed))
    code, _, err = program.end()
    assert code == ExitCode.UNWRITABLE
    (line,) = err.splitlines()
    assert line.startswith(f"Error: {closed} cannot be written: ")
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
