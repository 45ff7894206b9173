"""Runs and commands that are ended from outside: what was found stands, nothing is left.

simulate, sweep, paper     the program itself, in the middle of its own work
run, bench, claims         the program with arms of :mod:`scripted_arm`, in the middle of one

Signals of one command within this process are in test_signals.py.
"""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from programs import (
    ARMS,
    Program,
    Starter,
    arm_ended,
    arm_steps,
    in_a_terminal,
    read_until,
    shared_memory,
    short_directory,
    take_the_terminal,
)
from real_parts import is_gone
from sweeps import full
from texts import fixed

from experiment.analysis.conclusions import evaluate
from experiment.bench.data import read_data
from experiment.commands.main import main
from experiment.events import ArmStarted, Event, Notice, RunFinished, RunStarted
from experiment.record.log import read_record
from experiment.text.errors import ExitCode
from kvsim.files import PART

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


@full
@pytest.mark.parametrize("stage", STAGES)
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


@full
@pytest.mark.parametrize(
    ("moment", "status", "arms"),
    [("the first line", "interrupted", ()), ("the last process", "complete", ARMS)],
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


MODEL = ("--model", "gpt2", "--gpu", "a100-80gb")
GRID = {"trace": "'sharegpt-like'", "policy": "'paged'", "model": "'gpt2'", "gpu": "'a100-80gb'"}
DEADLINE_S = 60.0
Begin = Callable[..., tuple[Program, int]]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Start the program itself in a session and a terminal of its own, which is our end."""
    started: list[Program] = []

    def begin(*words: str) -> tuple[Program, int]:
        ours, theirs = pty.openpty()
        scratch, shared = short_directory(), shared_memory()
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "run_experiment.py"), *words, "--lang", "en"],
            stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, cwd=tmp_path,
            preexec_fn=take_the_terminal, encoding="utf-8",
            env={**os.environ, "TMPDIR": str(scratch), "TERM": "xterm", "COLUMNS": "200"},
        )  # fmt: skip
        os.close(theirs)
        started.append(Program(process, tmp_path / "out", shared, scratch))
        return started[-1], ours

    yield begin
    for program in started:
        if program.process.poll() is None:
            os.killpg(program.process.pid, signal.SIGKILL)
            program.process.wait()


def end(program: Program, number: signal.Signals, terminal: int, said: str) -> int:
    """End a program; its exit code, once nothing of it is left.

    SIGINT goes to each of its processes, as Ctrl-C does; SIGHUP is a terminal that closes. A
    program that can still print says ``said``.
    """
    below = psutil.Process(program.process.pid).children(recursive=True)
    if number == signal.SIGHUP:
        os.close(terminal)
    elif number == signal.SIGINT:
        os.killpg(program.process.pid, number)
    else:
        program.process.send_signal(number)
    if number in (signal.SIGINT, signal.SIGTERM):
        read_until(terminal, said)
    code = program.process.wait(DEADLINE_S)
    assert [process for process in below if not is_gone(process.pid)] == []
    program.nothing_is_left()
    return code


def parts_in(directory: Path) -> list[str]:
    return [path.name for path in directory.rglob(f"*{PART}")]


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGHUP, marks=full)])
def test_a_simulation_that_is_ended_keeps_the_policies_that_are_done(
    begin: Begin, number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("--trace", "sharegpt-like", "--requests", "15000", "--rate", "50")
    program, terminal = begin("simulate", *asked, *MODEL, "--policy", "max,pow2", "--out", "out")
    read_until(terminal, "pow2")
    assert end(program, number, terminal, fixed("sim.interrupted")) == 128 + number
    data = json.loads((program.out / "sim.json").read_text(encoding="utf-8"))
    assert [cell["policy"] for cell in data["cells"]] == ["max"]
    assert data["interrupted"]
    assert main(["render", str(program.out), "--lang", "en"]) == ExitCode.OK
    assert fixed("sim.interrupted") in " ".join(capsys.readouterr().out.split())
    assert parts_in(program.out) == []


def grid(requests: str) -> list[str]:
    """Words of a sweep whose cells differ in their requests."""
    axes = {**GRID, "requests": requests}
    return [word for name, value in axes.items() for word in ("--set", f"{name}={value}")]


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=full), signal.SIGKILL])
def test_a_sweep_that_is_ended_keeps_its_cells_and_goes_on(
    begin: Begin, number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    """One cell takes no time, one minutes; killed, its processes see that nobody waits."""
    program, terminal = begin("sweep", *grid("[20, 500000]"), "--workers", "2", "--out", "out")
    first_of(program.out, "cells/*.json")
    said = "Interrupted: 1 of 2 cells"
    code = end(program, number, terminal, said)
    assert code == (128 + number if number == signal.SIGINT else -number)
    assert parts_in(program.out) == []
    assert main(["sweep", *grid("[20]"), "--out", str(program.out), "--lang", "en"]) == ExitCode.OK
    assert "1 cells done; 0 left" in " ".join(capsys.readouterr().out.split())


def test_a_sweep_removes_what_a_killed_one_was_writing(tmp_path: Path) -> None:
    left = tmp_path / "cells" / f".x.json.{2**22 + 1}.abc{PART}"
    left.parent.mkdir()
    left.touch()
    assert main(["sweep", *grid("[20]"), "--workers", "1", "--out", str(tmp_path)]) == ExitCode.OK
    assert parts_in(tmp_path) == []


@full
def test_checks_of_the_paper_that_are_ended_say_how_many_there_were(begin: Begin) -> None:
    program, terminal = begin("paper", "--seeds", "1000", "--out", "out")
    read_until(terminal, "1/6")
    said = "Interrupted after 1 of 6 parts"
    assert end(program, signal.SIGTERM, terminal, said) == ExitCode.TERMINATED
    data = json.loads((program.out / "paper.json").read_text(encoding="utf-8"))
    assert data["interrupted"] == {"done": 1, "of": 6}
    assert data["claims"]
    page = (program.out / "paper.html").read_text(encoding="utf-8")
    assert "Interrupted after 1 of 6 parts" in page
    assert parts_in(program.out) == []


def test_a_benchmark_that_is_ended_keeps_its_rows(
    start: Starter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bench"
    asked = ("--quick", "--workloads", "A", "--arms", ",".join(ARMS), "--out", str(out))
    program = start("bench", *asked, pause_s=0.3)
    program.out = first_of(out, "runs/*/A-0")
    program.wait_for(arm_steps(SECOND))
    program.process.send_signal(signal.SIGTERM)
    code, printed, err = program.end()
    assert (code, err) == (ExitCode.TERMINATED, "")
    told = "The benchmark was interrupted"
    assert told in " ".join(printed.split())
    data = read_data(out)
    assert data.status == "interrupted"
    assert [(row.arm, row.status) for row in data.rows] == [
        (FIRST, "finished"), (SECOND, "failed"),
    ]  # fmt: skip
    assert told in (out / "bench.html").read_text(encoding="utf-8")
    assert main(["bench", "--show", str(out), "--lang", "en"]) == ExitCode.OK
    assert told in " ".join(capsys.readouterr().out.split())
    assert parts_in(out) == []


def first_of(directory: Path, pattern: str) -> Path:
    """The directory of that name, once it is there."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        if found := next(directory.glob(pattern), None):
            return found
        time.sleep(0.02)
    raise AssertionError("it never came to that")
