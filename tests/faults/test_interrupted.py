"""Runs that are interrupted or asked to end: what was measured stands, nothing is left.

Signals of one command within this process are in test_signals.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from programs import ARMS, Starter, arm_ended, arm_steps, in_a_terminal, read_until
from real_parts import is_gone
from sweeps import full
from texts import fixed

from experiment.analysis.conclusions import evaluate
from experiment.commands.main import main
from experiment.events import ArmStarted, Event, Notice, RunFinished, RunStarted
from experiment.record.log import read_record
from experiment.text.errors import ExitCode

ROOT = Path(__file__).parents[2]
FIRST, SECOND = ARMS


def is_interrupted(out: Path, arms: tuple[str, ...]) -> None:
    """The record is closed, the arms are those that began, and the report says so."""
    record = read_record(out)
    assert record.of(RunFinished)[-1].status == "interrupted"
    assert tuple(arm.arm for arm in evaluate(record).arms) == arms
    assert "This run was interrupted" in (out / "report.html").read_text(encoding="utf-8")


def ended_by(out: Path) -> list[str]:
    """The signals that the record names as its end."""
    notes = [note.text for note in read_record(out).of(Notice)]
    return [text.params["signal"] for text in notes if text.key == "note.ended_by"]


def test_a_program_that_is_asked_to_end_draws_what_it_has(start: Starter) -> None:
    program = start(pause_s=0.2)
    program.wait_for(arm_steps(SECOND))
    program.process.send_signal(signal.SIGTERM)
    code, _, err = program.end()
    assert (code, err) == (ExitCode.TERMINATED, "")
    is_interrupted(program.out, ARMS)
    first, second = evaluate(read_record(program.out)).arms
    assert (first.status, second.status) == ("finished", "failed")
    assert second.steps
    assert ended_by(program.out) == ["SIGTERM"]


def begun(arm: str) -> Callable[[list[Event]], bool]:
    return lambda events: any(isinstance(e, ArmStarted) and e.arm == arm for e in events)


# What the program is made to do, what is waited for, and the arms that began.
STAGES: dict[str, tuple[dict[str, Any], Callable[[list[Event]], bool], tuple[str, ...]]] = {
    "preparation": ({"hang_in": "prepare"}, begun("prepare"), ()),
    "an arm loads": ({"scripts": {FIRST: "hang at once"}}, begun(FIRST), (FIRST,)),
    "between two arms": ({"hang_in": "between"}, arm_ended(FIRST), (FIRST,)),
}


@pytest.mark.parametrize(
    "stage", ["preparation", *(pytest.param(stage, marks=full) for stage in list(STAGES)[1:])]
)
def test_ctrl_c_at_any_stage_closes_the_record(stage: str, start: Starter) -> None:
    options, seen, arms = STAGES[stage]
    program = start(**options)
    program.wait_for(seen)
    program.process.send_signal(signal.SIGINT)
    code, _, err = program.end()
    assert (code, err) == (ExitCode.INTERRUPTED, "")
    is_interrupted(program.out, arms)


def test_a_second_ctrl_c_kills_an_arm_that_ignores_the_first(start: Starter) -> None:
    program = start(scripts={FIRST: "ignore being asked to end"})
    seen = program.wait_for(arm_steps(FIRST))
    (pid,) = [event.pid for event in seen if isinstance(event, ArmStarted)]
    program.process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert Path(f"/proc/{pid}").exists()
    program.process.send_signal(signal.SIGINT)
    began = time.monotonic()
    assert is_gone(pid)
    assert time.monotonic() - began < 1.5, "asked first, it would have had three seconds"
    assert program.end()[0] == ExitCode.INTERRUPTED
    is_interrupted(program.out, (FIRST,))


def test_ctrl_c_while_the_report_is_drawn_leaves_it_undrawn(start: Starter) -> None:
    program = start()
    program.wait_for(lambda events: any(isinstance(e, RunFinished) for e in events))
    program.process.send_signal(signal.SIGINT)
    code, printed, err = program.end()
    assert (code, err) == (ExitCode.INTERRUPTED, "")
    assert fixed("note.not_drawn") in " ".join(printed.split())
    assert not (program.out / "report.html").exists()
    assert [arm.status for arm in evaluate(read_record(program.out)).arms] == ["finished"] * 2
    assert main(["render", str(program.out), "--lang", "en"]) == ExitCode.OK
    assert (program.out / "report.html").exists()


@pytest.mark.parametrize(
    ("moment", "status", "arms"),
    [
        pytest.param("the first line", "interrupted", (), marks=full),
        ("the last process", "complete", ARMS),
    ],
)
def test_a_signal_at_either_end_of_the_log_waits_until_it_is_whole(
    moment: str, status: str, arms: tuple[str, ...], start: Starter
) -> None:
    program = start(signal_in=moment)
    code, _, err = program.end()
    assert (code, err) == (ExitCode.TERMINATED, "")
    record = read_record(program.out)
    assert isinstance(record.events[0], RunStarted)
    assert [end.status for end in record.of(RunFinished)] == [status]
    assert tuple(arm.arm for arm in evaluate(record).arms) == arms
    assert ended_by(program.out) == ["SIGTERM"]
    assert (program.out / "report.html").exists()


@full
def test_a_signal_at_the_gate_ends_the_run_in_order(start: Starter) -> None:
    """While it waits for somebody to press Enter."""
    program, terminal = in_a_terminal(start, "--ascii")
    read_until(terminal, "Press Enter")
    program.process.send_signal(signal.SIGTERM)
    read_until(terminal, "report.html")
    assert program.process.wait(60) == ExitCode.TERMINATED
    os.close(terminal)
    program.nothing_is_left()
    is_interrupted(program.out, (FIRST,))


def test_a_wall_clock_that_jumps_changes_no_duration(start: Starter) -> None:
    program = start(clock_jumps=True)
    code, _, err = program.end()
    assert (code, err) == (ExitCode.OK, "")
    record = read_record(program.out)
    moments = [event.t_ns for event in record.events if not hasattr(event, "plan")]
    assert max(moments) - min(moments) < 120 * 10**9
    for arm in evaluate(record).arms:
        assert arm.status == "finished"
        assert 0 <= (arm.watch.waited_s or 0) < 60
        assert 0 < (arm.watch.watched_s or 0) < 60


HOOK = """
import importlib.abc, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Hook(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "experiment.text":
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Hook())
sys.argv = ["x", "--yes"]
"""


@pytest.mark.parametrize(
    "enters",
    [
        "import runpy; runpy.run_path('run_experiment.py', run_name='__main__')",
        "from experiment.__main__ import entry; sys.exit(entry())",
    ],
)
def test_ctrl_c_while_the_program_is_imported_is_no_traceback(enters: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HOOK + enters], cwd=ROOT, capture_output=True, text=True,
        encoding="utf-8", check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr, done.stdout) == (ExitCode.INTERRUPTED, "", "")
