"""Commands that are ended from outside: the documented code, nothing left, what was found stands.

simulate, sweep, paper     the program itself, in the middle of its own work
bench, claims              the program with arms of :mod:`scripted_arm`, in the middle of one
"""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from programs import (
    ARMS,
    Program,
    Starter,
    arm_steps,
    in_a_terminal,
    no_shared_memory_is_left,
    shared_memory,
    short_directory,
    take_the_terminal,
)
from real_parts import is_gone

from experiment.bench.data import read_data
from experiment.commands.main import main
from experiment.experiments.claims import needed
from experiment.record.log import read_record
from experiment.text.errors import ExitCode
from kvsim.files import PART

ROOT = Path(__file__).parent.parent.parent
FIRST, SECOND = ARMS
CODES = {
    signal.SIGINT: ExitCode.INTERRUPTED,
    signal.SIGTERM: ExitCode.TERMINATED,
    signal.SIGHUP: ExitCode.HUNG_UP,
}
MODEL = ("--model", "gpt2", "--gpu", "a100-80gb")
GRID = {"trace": "'sharegpt-like'", "policy": "'paged'", "model": "'gpt2'", "gpu": "'a100-80gb'"}
DEADLINE_S = 60.0


@dataclass
class Command:
    """The program in a session of its own; what it prints goes to a terminal."""

    process: subprocess.Popen[bytes]
    terminal: int
    scratch: Path
    shared: frozenset[str]
    printed: str = ""
    # A sign of several bytes may come in two pieces.
    decoder: codecs.IncrementalDecoder = field(
        default_factory=codecs.getincrementaldecoder("utf-8")
    )

    def read_until(self, seen: Callable[[], bool]) -> None:
        """Read what it prints until something is so."""
        deadline = time.monotonic() + DEADLINE_S
        while not seen():
            assert time.monotonic() < deadline, self.printed
            ready, _, _ = select.select([self.terminal], [], [], 0.05)
            try:
                self.printed += self.decoder.decode(os.read(self.terminal, 65536) if ready else b"")
            except OSError:  # it has ended
                return

    def close(self) -> None:
        """Close our end of the terminal."""
        if self.terminal >= 0:
            os.close(self.terminal)
        self.terminal = -1

    def end(self, number: signal.Signals, group: bool = False) -> tuple[int, str]:
        """Send a signal; the code, and all that was printed. Nothing may be left.

        ``group``: to every process of it, as Ctrl-C in a terminal does. SIGHUP is not sent: the
        terminal closes, and then, as a shell does, the processes are told once more.
        """
        below = psutil.Process(self.process.pid).children(recursive=True)
        if number == signal.SIGHUP:
            self.close()
            group = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number) if group else self.process.send_signal(number)
        if self.terminal >= 0:
            self.read_until(lambda: self.process.poll() is not None)
            self.read_until(lambda: not select.select([self.terminal], [], [], 0)[0])
        self.process.wait(DEADLINE_S)
        assert [process for process in below if not is_gone(process.pid)] == []
        no_shared_memory_is_left(self.shared)
        assert list(self.scratch.iterdir()) == []
        return self.process.wait(), " ".join(re.sub(r"\x1b\[[^A-Za-z]*.", "", self.printed).split())


Commanding = Callable[..., Command]


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Commanding]:
    started: list[Command] = []

    def begin(*words: str) -> Command:
        ours, theirs = pty.openpty()
        scratch = short_directory()
        shared = shared_memory()
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "run_experiment.py"), *words, "--lang", "en"],
            stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, cwd=tmp_path,
            preexec_fn=take_the_terminal,
            env={**os.environ, "TMPDIR": str(scratch), "TERM": "xterm", "COLUMNS": "200"},
        )  # fmt: skip
        os.close(theirs)
        started.append(Command(process, ours, scratch, shared))
        return started[-1]

    yield begin
    for each in started:
        if each.process.poll() is None:
            os.killpg(each.process.pid, signal.SIGKILL)
            each.process.wait()
        each.close()


def parts_in(directory: Path) -> list[str]:
    return [path.name for path in directory.rglob(f"*{PART}")]


@pytest.mark.parametrize("number", CODES)
def test_a_simulation_that_is_ended_keeps_the_policies_that_are_done(
    command: Commanding, tmp_path: Path, number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    asked = ("--trace", "sharegpt-like", "--requests", "15000", "--rate", "50")
    begun = command("simulate", *asked, *MODEL, "--policy", "max,pow2", "--out", str(out))
    begun.read_until(lambda: "pow2" in begun.printed)
    code, printed = begun.end(number)
    assert code == CODES[number]
    assert "Traceback" not in printed
    assert "The simulation was interrupted" in printed or number == signal.SIGHUP
    data = json.loads((out / "sim.json").read_text(encoding="utf-8"))
    assert [cell["policy"] for cell in data["cells"]] == ["max"]
    assert data["interrupted"]
    assert main(["render", str(out), "--lang", "en"]) == ExitCode.OK
    assert "The simulation was interrupted" in " ".join(capsys.readouterr().out.split())
    assert parts_in(out) == []


def test_a_simulation_that_is_ended_at_once_leaves_nothing(
    command: Commanding, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    asked = ("--trace", "sharegpt-like", "--requests", "200000", "--rate", "50")
    begun = command("simulate", *asked, *MODEL, "--policy", "paged", "--out", str(out))
    begun.read_until(out.exists)
    code, printed = begun.end(signal.SIGTERM)
    assert code == ExitCode.TERMINATED
    assert printed.endswith("Interrupted.")
    assert not out.exists()


def grid(requests: str) -> list[str]:
    """Words of a sweep whose cells differ in their requests."""
    axes = {**GRID, "requests": requests}
    return [word for name, value in axes.items() for word in ("--set", f"{name}={value}")]


@pytest.mark.parametrize("number", [*CODES, signal.SIGKILL])
def test_a_sweep_that_is_ended_keeps_its_cells_and_goes_on(
    command: Commanding, tmp_path: Path, number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    """One cell takes no time, one minutes; killed, its processes see that nobody waits."""
    out = tmp_path / "out"
    words = ("sweep", *grid("[20, 500000]"), "--workers", "2", "--out", str(out))
    begun = command(*words)
    begun.read_until(lambda: any((out / "cells").glob("*.json")))
    code, printed = begun.end(number, group=number == signal.SIGINT)
    assert code == CODES.get(number, -number)
    assert "Traceback" not in printed
    if number not in (signal.SIGKILL, signal.SIGHUP):
        assert "Interrupted: 1 of 2 cells are finished and kept in" in printed
    assert parts_in(out) == []
    assert main(["sweep", *grid("[20]"), "--out", str(out), "--lang", "en"]) == ExitCode.OK
    assert "1 are finished already; 0 are left" in " ".join(capsys.readouterr().out.split())


def test_a_sweep_removes_what_a_killed_one_was_writing(tmp_path: Path) -> None:
    left = tmp_path / "cells" / f".x.json.{2**22 + 1}.abc{PART}"
    left.parent.mkdir()
    left.touch()
    assert main(["sweep", *grid("[20]"), "--workers", "1", "--out", str(tmp_path)]) == ExitCode.OK
    assert parts_in(tmp_path) == []


@pytest.mark.parametrize("number", CODES)
def test_checks_of_the_paper_that_are_ended_say_how_many_there_were(
    command: Commanding, tmp_path: Path, number: signal.Signals
) -> None:
    out = tmp_path / "out"
    begun = command("paper", "--seeds", "1000", "--out", str(out))
    begun.read_until(lambda: "1/6" in begun.printed)
    code, printed = begun.end(number)
    assert code == CODES[number]
    assert "Interrupted after 1 of 6 parts: so far" in printed or number == signal.SIGHUP
    data = json.loads((out / "paper.json").read_text(encoding="utf-8"))
    assert data["interrupted"] == {"done": 1, "of": 6}
    assert data["claims"]
    assert "Interrupted after 1 of 6 parts" in (out / "paper.html").read_text(encoding="utf-8")
    assert parts_in(out) == []


def benchmark(start: Starter, out: Path, pause_s: float) -> Program:
    """A benchmark of two arms that has begun; what is waited for is its first run."""
    asked = ("--quick", "--workloads", "A", "--arms", ",".join(ARMS), "--out", str(out))
    program = start("bench", *asked, pause_s=pause_s)
    program.out = first_of(out, "runs/*/A-0")
    return program


def test_a_benchmark_that_is_ended_keeps_its_rows(
    start: Starter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bench"
    program = benchmark(start, out, pause_s=0.5)
    program.wait_for(arm_steps(SECOND))
    program.process.send_signal(signal.SIGTERM)
    code, printed, err = program.end()
    assert (code, err) == (ExitCode.TERMINATED, "")
    told = "The benchmark did not come to its end"
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


def test_a_benchmark_whose_directory_is_taken_away_misses_it(
    start: Starter, tmp_path: Path
) -> None:
    out = tmp_path / "bench"
    program = benchmark(start, out, pause_s=0.2)
    program.wait_for(arm_steps(FIRST))
    program.out = out.rename(tmp_path / "moved") / program.out.relative_to(out)
    code, _, err = program.end()
    assert code == ExitCode.UNWRITABLE
    (line,) = err.splitlines()
    assert line.startswith(f"Error: {out} cannot be written: ")


def test_a_benchmark_that_is_ended_before_it_measures_leaves_nothing(
    start: Starter, tmp_path: Path
) -> None:
    out = tmp_path / "bench"
    program = start("bench", "--quick", "--out", str(out), hang_in="prepare")
    program.out = first_of(out, "runs/*/prepare")
    program.wait_for(lambda events: any(hasattr(event, "pid") for event in events))
    program.process.send_signal(signal.SIGTERM)
    code, _, err = program.end()
    assert (code, err) == (ExitCode.TERMINATED, "Interrupted.\n")
    assert [path for path in out.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_claims_that_are_ended_close_the_run_that_was_going(
    start: Starter, tmp_path: Path, number: signal.Signals
) -> None:
    out = tmp_path / "claims"
    program = start("claims", "--quick", "--out", str(out), pause_s=0.5, out=out / needed()[0])
    program.wait_for(arm_steps(FIRST))
    program.process.send_signal(number)
    code, printed, err = program.end()
    assert (code, err) == (CODES[number], "")
    assert f"--out {out} resumes" in " ".join(printed.split())
    record = read_record(program.out)
    assert record.events[-1].model_dump()["status"] == "interrupted"
    assert (program.out / "report.html").exists()
    assert [path.name for path in out.iterdir()] == [needed()[0]]
    assert parts_in(out) == []


@pytest.mark.parametrize("command", ["bench", "claims"])
def test_a_terminal_that_closes_ends_what_runs_arms_in_order(
    start: Starter, tmp_path: Path, command: str
) -> None:
    out = tmp_path / "out"
    words = ("--arms", ",".join(ARMS), "--workloads", "A") if command == "bench" else ()
    program, terminal = in_a_terminal(
        start, command, "--quick", *words, "--out", str(out), pause_s=0.5
    )
    program.out = first_of(out, "runs/*/A-0" if command == "bench" else needed()[0])
    program.wait_for(arm_steps(FIRST))
    os.close(terminal)
    assert program.process.wait(60) == ExitCode.HUNG_UP
    program.nothing_is_left()
    assert read_record(program.out).events[-1].model_dump()["status"] == "interrupted"
    assert (out / "bench.html" if command == "bench" else program.out / "report.html").exists()
    assert parts_in(out) == []


def first_of(directory: Path, pattern: str) -> Path:
    """The directory of that name, once it is there."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        if found := next(directory.glob(pattern), None):
            return found
        time.sleep(0.02)
    raise AssertionError("it never came to that")
