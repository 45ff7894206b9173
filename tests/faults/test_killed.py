"""Programs that are killed outright: what they started ends all the same, and no log lies.

Nobody is left to end anything but a process that was started for that.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import psutil
import pytest
from programs import ARMS, SHM, Starter, arm_steps, no_shared_memory_is_left
from real_parts import is_gone

from experiment.analysis.conclusions import evaluate
from experiment.commands.main import main
from experiment.events import RunFinished
from experiment.process.process_tree import is_guard
from experiment.record.log import EVENTS_FILE, read_record
from experiment.text.errors import ExitCode

FIRST, _ = ARMS


def test_nothing_that_an_arm_started_outlives_a_program_that_is_killed(start: Starter) -> None:
    """In a session of its own or not, deaf to SIGTERM, and with memory that nobody else knows."""
    program = start(scripts={FIRST: "start others"})
    program.wait_for(arm_steps(FIRST))
    others = json.loads(start.note.read_text(encoding="utf-8"))
    try:
        assert (SHM / others["shared"]).exists()
        below = psutil.Process(program.process.pid).children(recursive=True)
        assert {process.pid for process in below} > set(others["pids"])
        assert [process for process in below if is_guard(process)]
        program.process.send_signal(signal.SIGKILL)
        assert program.end()[0] == -signal.SIGKILL
        assert all(is_gone(process.pid) for process in below)
        no_shared_memory_is_left(program.shared)
    finally:
        for pid in others["pids"]:
            if not is_gone(pid):
                os.kill(pid, signal.SIGKILL)
        (SHM / others["shared"]).unlink(missing_ok=True)


@pytest.mark.parametrize("script", ["start others and be killed", "start others and crash"])
def test_nothing_that_an_arm_started_outlives_the_arm(script: str, start: Starter) -> None:
    """It dies by itself, and the other arm runs beside nobody."""
    program = start(scripts={FIRST: script})
    assert program.end()[0] == ExitCode.INCOMPLETE
    others = json.loads(start.note.read_text(encoding="utf-8"))
    assert all(is_gone(pid) for pid in others["pids"])
    assert not (SHM / others["shared"]).exists()
    assert [arm.status for arm in evaluate(read_record(program.out)).arms] == ["failed", "finished"]


@pytest.mark.parametrize("line", ["", '{"t_ns":0,"event":"run_st'])
def test_a_log_without_a_line_is_said_to_have_none(
    line: str, start: Starter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever opened it was killed before its first line, or in it."""
    program = start(signal_in="the log is opened SIGKILL")
    assert program.end()[0] == -signal.SIGKILL
    log = program.out / EVENTS_FILE
    assert log.read_bytes() == b""
    log.write_text(line, encoding="utf-8")
    commands = (
        ["render", str(program.out)],
        ["--resume", str(program.out)],
        ["compare", str(program.out), str(program.out), "--out", str(tmp_path / "compared")],
    )
    for command in commands:
        for lang, words in (("en", "has no complete line"), ("zh", "还没有一行完整的内容")):
            assert main([*command, "--lang", lang]) == ExitCode.USAGE, command
            (said,) = capsys.readouterr().err.splitlines()
            assert words in said, command
            assert str(program.out) in said
    assert log.read_text(encoding="utf-8") == line


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_as_the_log_is_opened_waits_for_its_first_line(name: str, start: Starter) -> None:
    program = start(signal_in=f"the log is opened {name}")
    code, _, err = program.end()
    assert (code, err) == (128 + signal.Signals[name], "")
    record = read_record(program.out)
    assert [end.status for end in record.of(RunFinished)] == ["interrupted"]
    assert (program.out / "report.html").exists()


def test_a_signal_before_there_is_a_log_leaves_no_directory(start: Starter) -> None:
    program = start(signal_in="the directory")
    code, _, err = program.end()
    assert (code, err) == (ExitCode.TERMINATED, "Interrupted.\n")
    assert not program.out.exists()
