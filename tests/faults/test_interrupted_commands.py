"""Commands that are ended from outside: the documented code, nothing left, what was found stands.

simulate, sweep, paper     the program itself, in the middle of its own work
bench, claims              the program with arms of :mod:`scripted_arm`, in the middle of one
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

import psutil
import pytest
from programs import (
    ARMS,
    Program,
    Starter,
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

from experiment.bench.data import read_data
from experiment.commands.main import main
from experiment.experiments.claims import needed
from experiment.record.log import read_record
from experiment.text.errors import ExitCode
from kvsim.files import PART

ROOT = Path(__file__).parent.parent.parent
FIRST, SECOND = ARMS
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
    program = start("bench", *asked, pause_s=0.5)
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


def test_claims_that_are_ended_close_the_run_that_was_going(start: Starter, tmp_path: Path) -> None:
    out = tmp_path / "claims"
    program = start("claims", "--quick", "--out", str(out), pause_s=0.5, out=out / needed()[0])
    program.wait_for(arm_steps(FIRST))
    program.process.send_signal(signal.SIGTERM)
    code, printed, err = program.end()
    assert (code, err) == (ExitCode.TERMINATED, "")
    assert f"--out {out} resumes" in " ".join(printed.split())
    record = read_record(program.out)
    assert record.events[-1].model_dump()["status"] == "interrupted"
    assert (program.out / "report.html").exists()
    assert [path.name for path in out.iterdir()] == [needed()[0]]
    assert parts_in(out) == []


@full
def test_a_terminal_that_closes_ends_a_benchmark_in_order(start: Starter, tmp_path: Path) -> None:
    out = tmp_path / "out"
    asked = ("--quick", "--arms", ",".join(ARMS), "--workloads", "A", "--out", str(out))
    program, terminal = in_a_terminal(start, "bench", *asked, pause_s=0.5)
    program.out = first_of(out, "runs/*/A-0")
    program.wait_for(arm_steps(FIRST))
    os.close(terminal)
    assert program.process.wait(60) == ExitCode.HUNG_UP
    program.nothing_is_left()
    assert read_record(program.out).events[-1].model_dump()["status"] == "interrupted"
    assert (out / "bench.html").exists()


def first_of(directory: Path, pattern: str) -> Path:
    """The directory of that name, once it is there."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        if found := next(directory.glob(pattern), None):
            return found
        time.sleep(0.02)
    raise AssertionError("it never came to that")
