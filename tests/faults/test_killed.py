"""Programs and arms that are killed: what they started ends, and the record can be drawn."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import psutil
import pytest
from programs import ARMS, SHM, Starter, arm_steps, no_shared_memory_is_left
from real_parts import is_gone
from texts import fixed

from experiment.analysis.conclusions import evaluate
from experiment.commands.main import main
from experiment.events import ArmStarted
from experiment.process.process_tree import is_reaper
from experiment.record.log import EVENTS_FILE, read_record
from experiment.text.errors import ExitCode

FIRST, SECOND = ARMS


def test_nothing_that_an_arm_started_outlives_a_program_that_is_killed(start: Starter) -> None:
    """In a session of its own or not, deaf to SIGTERM, and with memory that nobody else knows."""
    program = start(scripts={FIRST: "start others"})
    program.wait_for(arm_steps(FIRST))
    others = json.loads(start.note.read_text(encoding="utf-8"))
    try:
        assert (SHM / others["shared"]).exists()
        below = psutil.Process(program.process.pid).children(recursive=True)
        assert {process.pid for process in below} > set(others["pids"])
        assert [process for process in below if is_reaper(process)]
        program.process.send_signal(signal.SIGKILL)
        assert program.end()[0] == -signal.SIGKILL
        assert all(is_gone(process.pid) for process in below)
        no_shared_memory_is_left(program.shared)
    finally:
        for pid in others["pids"]:
            if not is_gone(pid):
                os.kill(pid, signal.SIGKILL)
        (SHM / others["shared"]).unlink(missing_ok=True)


def test_nothing_that_an_arm_started_outlives_the_arm(start: Starter) -> None:
    """It dies by itself, and the other arm runs beside nothing of it."""
    program = start(scripts={FIRST: "start others and be killed"})
    assert program.end()[0] == ExitCode.INCOMPLETE
    others = json.loads(start.note.read_text(encoding="utf-8"))
    assert all(is_gone(pid) for pid in others["pids"])
    assert not (SHM / others["shared"]).exists()
    first, second = evaluate(read_record(program.out)).arms
    assert (first.reason and first.reason.key, second.status) == ("failure.killed", "finished")
    assert "Killed from outside (SIGKILL)" in (program.out / "report.html").read_text("utf-8")


def test_a_program_that_is_killed_leaves_a_record_that_can_be_drawn(
    start: Starter, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a stopped arm below it, which cannot notice by itself."""
    program = start(scripts={SECOND: "hang"})
    seen = program.wait_for(arm_steps(SECOND))
    os.kill([e.pid for e in seen if isinstance(e, ArmStarted)][-1], signal.SIGSTOP)
    program.process.send_signal(signal.SIGKILL)
    assert program.end()[0] == -signal.SIGKILL
    with (program.out / EVENTS_FILE).open("a", encoding="utf-8") as file:
        file.write('{"t_ns":17,"event":"rea')
    assert main(["render", str(program.out), "--lang", "en"]) == ExitCode.OK
    printed = " ".join(capsys.readouterr().out.split())
    assert fixed("note.damaged_lines") in printed
    results = evaluate(read_record(program.out))
    assert [arm.status for arm in results.arms] == ["finished", "failed"]
    assert results.status == "failed"
    page = (program.out / "report.html").read_text(encoding="utf-8")
    assert "The log breaks off before this arm" in page


@pytest.mark.parametrize("line", ["", '{"t_ns":0,"event":"run_st'])
def test_a_log_without_a_whole_line_is_refused(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program was killed before its first line, or in it."""
    run = tmp_path / "run"
    run.mkdir()
    (run / EVENTS_FILE).write_text(line, encoding="utf-8")
    for command in (["render", str(run)], ["--resume", str(run)], ["compare", str(run), str(run)]):
        assert main([*command, "--lang", "en"]) == ExitCode.USAGE, command
        (said,) = capsys.readouterr().err.splitlines()
        assert fixed("error.record_empty") in said, command
        assert str(run) in said
    assert (run / EVENTS_FILE).read_text(encoding="utf-8") == line
