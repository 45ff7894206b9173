"""Commands that are ended from outside: what was found stands, nothing is left.

simulate, sweep, paper     the program itself, in the middle of its own work
bench                      the program with arms of :mod:`scripted_arm`, in the middle of one

Runs are in test_broken_runs.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from programs import ARMS, FIRST, ROOT, SECOND, Program, Starter, arm_steps, is_gone, soon
from sweeps import full
from texts import fixed

from experiment.bench.data import read_data
from experiment.commands.main import main
from experiment.text.errors import ExitCode
from kvsim.base.files import PART

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
GRID = ("trace='sharegpt-like'", "policy='paged'", "model='gpt2'", "gpu='a100-80gb'")


def begin(start: Starter, *words: str) -> Program:
    """Start the program itself in a terminal."""
    out = start.place / "out"
    program = str(ROOT / "run_experiment.py")
    return start.run(program, *words, "--out", str(out), out=out, terminal=True)


def end(program: Program, number: signal.Signals, said: str) -> None:
    """End a program, and look that nothing of it is left, and that it said so if it could.

    SIGINT goes to each of its processes, as Ctrl-C does; SIGHUP is a terminal that closes.
    """
    below = psutil.Process(program.process.pid).children(recursive=True)
    if number == signal.SIGHUP:
        program.hang_up()
    elif number == signal.SIGINT:
        os.killpg(program.process.pid, number)
    else:
        program.process.send_signal(number)
    if number in (signal.SIGINT, signal.SIGTERM):
        program.read_until(said)
    code, *_ = program.end()
    assert code == (-number if number == signal.SIGKILL else 128 + number)
    assert all(is_gone(process.pid) for process in below)
    assert parts_in(program.out) == []


def parts_in(directory: Path) -> list[Path]:
    return list(directory.rglob(f"*{PART}"))


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGHUP, marks=full)])
def test_a_simulation_that_is_ended_keeps_the_policies_that_are_done(
    start: Starter, number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("--trace", "sharegpt-like", "--requests", "15000", "--rate", "50")
    program = begin(start, "simulate", *asked, *MODEL, "--policy", "max,pow2")
    program.read_until("pow2")
    end(program, number, fixed("sim.interrupted"))
    data = json.loads((program.out / "sim.json").read_text(encoding="utf-8"))
    assert [cell["policy"] for cell in data["cells"]] == ["max"]
    assert data["interrupted"]
    assert main(["render", str(program.out), "--lang", "en"]) == ExitCode.OK
    assert fixed("sim.interrupted") in " ".join(capsys.readouterr().out.split())


def grid(requests: str) -> list[str]:
    """Words of a sweep whose cells differ in their requests."""
    axes = (*GRID, f"requests={requests}")
    return ["sweep", *(word for axis in axes for word in ("--set", axis))]


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=full), signal.SIGKILL])
def test_a_sweep_that_is_ended_keeps_its_cells_and_goes_on(
    start: Starter, number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    """One cell takes no time, one minutes; killed, its processes see that nobody waits."""
    program = begin(start, *grid("[20, 500000]"), "--workers", "2")
    assert soon(lambda: list(program.out.glob("cells/*.json")))
    end(program, number, "Interrupted: 1 of 2 cells")
    left = program.out / "cells" / f".x.json.{2**22 + 1}.abc{PART}"
    left.touch()  # as one that was killed while it wrote leaves it
    assert main([*grid("[20]"), "--out", str(program.out), "--lang", "en"]) == ExitCode.OK
    assert "1 cells done; 0 left" in " ".join(capsys.readouterr().out.split())
    assert parts_in(program.out) == []


@full
def test_checks_of_the_paper_that_are_ended_say_how_many_there_were(start: Starter) -> None:
    program, said = begin(start, "paper", "--seeds", "1000"), "Interrupted after 1 of 6 parts"
    program.read_until("1/6")
    end(program, signal.SIGTERM, said)
    data = json.loads((program.out / "paper.json").read_text(encoding="utf-8"))
    assert data["interrupted"] == {"done": 1, "of": 6}
    assert data["claims"]
    assert said in (program.out / "paper.html").read_text(encoding="utf-8")


def test_a_benchmark_that_is_ended_keeps_its_rows(
    start: Starter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, said = tmp_path / "bench", "The benchmark was interrupted"
    asked = ("--quick", "--workloads", "A", "--arms", ",".join(ARMS), "--out", str(out))
    program = start("bench", *asked, pause_s=0.3)
    (program.out,) = soon(lambda: list(out.glob("runs/*/A-0")))
    program.wait_for(arm_steps(SECOND))
    program.process.send_signal(signal.SIGTERM)
    code, printed, err = program.end()
    assert (code, err) == (ExitCode.TERMINATED, "")
    data = read_data(out)
    assert (data.status, [(row.arm, row.status) for row in data.rows]) == (
        "interrupted", [(FIRST, "finished"), (SECOND, "failed")]
    )  # fmt: skip
    assert main(["bench", "--show", str(out), "--lang", "en"]) == ExitCode.OK
    page = (out / "bench.html").read_text(encoding="utf-8")
    assert all(said in " ".join(text.split()) for text in (printed, page, capsys.readouterr().out))
    assert parts_in(out) == []
