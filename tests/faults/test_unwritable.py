"""What cannot be written: a terminal closes, a pipe has no reader, a disk is full, a place goes."""

from __future__ import annotations

import errno
import os
import pty
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from programs import ARMS, Starter, arm_steps, in_a_terminal, read_until, take_interrupts
from sweeps import full

from experiment.analysis.conclusions import evaluate
from experiment.commands import main as cli
from experiment.commands.main import main
from experiment.events import RunFinished
from experiment.process.interrupts import EndedError, Interrupts, read_answer
from experiment.process.streams import ignore_broken_pipe
from experiment.record.log import EVENTS_FILE, read_record
from experiment.report import render as rendering
from experiment.text.errors import ExitCode, UserError

ROOT = Path(__file__).parents[2]
FIRST, _ = ARMS
FULL = Path("/dev/full")


@pytest.mark.parametrize("where", ["an arm", pytest.param("the gate", marks=full)])
def test_a_terminal_that_closes_ends_the_run_in_order(where: str, start: Starter) -> None:
    words = ["--yes", "--details"] if where == "an arm" else ["--ascii"]
    program, terminal = in_a_terminal(start, *words, pause_s=0.2)
    read_until(terminal, "Reserved:" if where == "an arm" else "Press Enter")
    os.close(terminal)
    assert program.process.wait(60) == ExitCode.HUNG_UP
    program.nothing_is_left()
    record = read_record(program.out)
    assert [end.status for end in record.of(RunFinished)] == ["interrupted"]
    assert [arm.arm for arm in evaluate(record).arms] == [FIRST]
    assert (program.out / "report.html").exists()


def test_a_terminal_that_closes_while_the_report_is_drawn_does_not_leave_it(start: Starter) -> None:
    program, terminal = in_a_terminal(start, "--yes", "--quiet")
    program.wait_for(lambda events: any(isinstance(e, RunFinished) for e in events))
    time.sleep(0.05)
    assert not (program.out / "report.html").exists()
    os.close(terminal)
    assert program.process.wait(60) == ExitCode.OK
    assert (program.out / "report.html").exists()


def test_a_run_whose_reader_has_seen_enough_goes_on(start: Starter) -> None:
    """As `| head` does."""
    program = start("--yes", pause_s=0.05)
    program.wait_for(arm_steps(FIRST))
    assert program.process.stdout is not None
    program.process.stdout.close()
    program.process.stdout = None
    code, _, err = program.end()
    assert (code, err) == (ExitCode.OK, "")
    record = read_record(program.out)
    assert record.of(RunFinished)[-1].status == "complete"
    assert [arm.status for arm in evaluate(record).arms] == ["finished"] * 2
    assert (program.out / "report.html").exists()


@full
def test_a_list_without_a_reader_is_no_error() -> None:
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "run_experiment.py"), "--list-experiments"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=take_interrupts,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (ExitCode.OK, b"")


def close(*descriptors: int) -> None:
    for each in descriptors:
        os.close(each)


def test_a_run_whose_streams_are_closed_keeps_a_whole_log(start: Starter) -> None:
    """As `<&- >&- 2>&-` do: no file of ours comes into their place, and a gate does not wait."""
    program = start("--lang", "en", preexec_fn=partial(close, 0, 1, 2), env={"CI": ""})
    assert program.end()[0] == ExitCode.OK
    record = read_record(program.out)
    assert record.damaged_lines == 0
    assert [arm.status for arm in evaluate(record).arms] == ["finished"] * 2
    assert (program.out / "report.html").read_text("utf-8").startswith("<!DOCTYPE html>")


@pytest.fixture
def full() -> int:
    """Where there is never any room."""
    if not FULL.exists():
        pytest.skip("this system has no /dev/full")
    return os.open(FULL, os.O_WRONLY)


@contextmanager
def printing_to(descriptor: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Our output is a file of its own while this lasts; a terminal's is written line by line."""
    with os.fdopen(descriptor, "w", encoding="utf-8", buffering=1) as file:
        monkeypatch.setattr(sys, "stdout", file)
        try:
            yield file
        finally:
            monkeypatch.undo()
            with Path(os.devnull).open("wb") as nowhere:  # what was not written stays unwritten
                os.dup2(nowhere.fileno(), file.fileno())


@pytest.mark.parametrize("code", [ExitCode.OK, ExitCode.INCOMPLETE])
def test_a_command_goes_on_where_its_output_meets_a_full_disk(
    code: int, full: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it finds is worth more than what it prints; at its end it says so."""
    done: list[str] = []

    def dispatch(*_: object) -> int:
        for number in range(2):
            print("this is not kept", flush=bool(number))
            done.append("and goes on")
        return code

    monkeypatch.setattr(cli, "_dispatch", dispatch)
    with printing_to(full, monkeypatch):
        ended = cli.main(["plan", "--lang", "en"])
    assert len(done) == 2
    assert ended == (code or ExitCode.UNWRITABLE)
    assert re.fullmatch(r"Error: .*stdout.*: the disk is full\.\n", capsys.readouterr().err)


def test_what_is_printed_at_the_very_end_is_not_lost_silently(full: int) -> None:
    """It stands in a buffer until then."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "run_experiment.py"), "--help", "--lang", "en"],
        stdout=full, stderr=subprocess.PIPE, encoding="utf-8", timeout=60, check=False,
    )  # fmt: skip
    os.close(full)
    assert done.returncode == ExitCode.UNWRITABLE
    assert re.fullmatch(r"Error: .*stdout.*: the disk is full\.\n", done.stderr)


def a_closed_terminal() -> int:
    ours, theirs = pty.openpty()
    os.close(ours)
    return theirs


@pytest.mark.usefixtures("foreground")
def test_what_a_thread_prints_to_a_closed_terminal_ends_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Displays are drawn by a thread; the error would end that one alone."""

    def print_and_wait() -> None:
        thread = threading.Thread(target=lambda: print("nobody reads this", flush=True))
        thread.start()
        thread.join()
        threading.Event().wait(10)

    with (
        printing_to(a_closed_terminal(), monkeypatch),
        Interrupts() as interrupts,
        ignore_broken_pipe(),
    ):
        with pytest.raises(EndedError):
            print_and_wait()
        print("nor this, and that is no error", flush=True)
        assert interrupts.exit_code == ExitCode.HUNG_UP


def fail(*_: object) -> str:
    """What reading from a terminal that is gone, or from a failing disk, does."""
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.usefixtures("foreground")
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


def can_be_drawn(run: Path, arms: int) -> None:
    assert len(evaluate(read_record(run)).arms) == arms
    assert main(["render", str(run), "--lang", "en"]) == ExitCode.OK
    assert (run / "report.html").exists()


def test_a_directory_that_is_moved_away_takes_the_record_with_it(
    start: Starter, tmp_path: Path
) -> None:
    program = start(pause_s=0.2)
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


def test_a_file_that_may_grow_no_more_ends_the_run_as_a_full_disk_does(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever no file system may be mounted; and a report on a full disk is one line, too."""
    size = 16 << 10  # the whole log has 23 KiB
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
