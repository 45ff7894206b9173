"""What another command writes or has written: a command refuses, or waits for it.

What holds a directory here is a process of its own, as another command is.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from programs import ROOT, Starter, is_gone
from texts import fixed
from written_runs import sample_run

from experiment.analysis.conclusions import evaluate
from experiment.commands.main import main
from experiment.files.locks import directory_lock, is_locked
from experiment.record.log import EVENTS_FILE, EventLog, read_record
from experiment.text.errors import ExitCode

HOLDER = """
import sys, time
from pathlib import Path
from experiment.files.locks import directory_lock
with directory_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""
SIMULATE = (
    "simulate", "--trace", "sharegpt-like", "--requests", "40", "--model", "gpt2", "--gpu",
    "a100-80gb", "--policy", "paged", "--quiet",
)  # fmt: skip
GRID = ("trace='sharegpt-like'", "policy='paged'", "model='gpt2'", "gpu='a100-80gb'", "requests=20")
# Each writes several files, or files that must agree with each other.
COMMANDS = {
    "run": ("run", "--yes", "--model", "tiny-gpt2"),
    "simulate": SIMULATE,
    "sweep": ("sweep", "--workers", "1", *(word for axis in GRID for word in ("--set", axis))),
    "paper": ("paper", "--seeds", "1"),
    "claims": ("claims", "--quick"),
    "bench": ("bench", "--quick"),
    "gpucheck": ("gpucheck",),
}
Hold = Callable[[Path], subprocess.Popen[str]]


@contextmanager
def holders() -> Iterator[Hold]:
    """Have directories in other processes, for a minute at the most."""
    started: list[subprocess.Popen[str]] = []

    def begin(directory: Path) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(directory)], stdout=subprocess.PIPE,
            encoding="utf-8", cwd=ROOT,
        )  # fmt: skip
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def hold() -> Iterator[Hold]:
    with holders() as begin:
        yield begin


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory that another command has."""
    out = tmp_path_factory.mktemp("held")
    with holders() as begin:
        begin(out)
        yield out


def soon_gone(holder: subprocess.Popen[str]) -> threading.Event:
    """End a holder in half a second; set as soon as it is."""
    gone = threading.Event()

    def end() -> None:
        gone.set()
        holder.kill()

    threading.Timer(0.5, end).start()
    return gone


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_refuses_a_directory_that_another_one_has(
    name: str, held: Path, refused: Callable[..., str]
) -> None:
    line = refused(*COMMANDS[name], "--out", held)
    assert str(held) in line
    assert fixed("error.run_in_use") in line
    assert list(held.iterdir()) == []


def test_of_two_runs_that_begin_at_once_one_writes(start: Starter, tmp_path: Path) -> None:
    both = [start(pause_s=0.2, out=tmp_path / "both") for _ in range(2)]
    (code, _, err), (other, _, line) = sorted(program.end() for program in both)
    assert (code, err, other, len(line.splitlines())) == (ExitCode.OK, "", ExitCode.USAGE, 1)
    assert fixed("error.run_in_use") in line
    assert [arm.status for arm in evaluate(read_record(tmp_path / "both")).arms] == ["finished"] * 2


def test_the_directory_of_a_command_that_was_killed_is_free(hold: Hold, tmp_path: Path) -> None:
    process = hold(tmp_path)
    assert is_locked(tmp_path)
    process.kill()
    assert is_gone(process.pid)
    with directory_lock(tmp_path):
        assert not is_locked(tmp_path), "it is ours"


def test_a_run_goes_on_when_it_was_drawn(hold: Hold, tmp_path: Path) -> None:
    """Else the sums of its log would be those of before."""
    (tmp_path / EVENTS_FILE).touch()
    gone = soon_gone(hold(tmp_path))
    with EventLog(tmp_path, resume=True):
        assert gone.is_set()


@pytest.mark.parametrize("command", ["render", "compare"])
def test_what_is_drawn_waits_for_another_one_and_not_for_ever(
    command: str, hold: Hold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drawing takes seconds, and files of two that draw at once would not agree."""
    run, out = str(sample_run(tmp_path / "run")), tmp_path / "out"
    out.mkdir()
    words = ["render", run] if command == "render" else ["compare", run, run, "--out", str(out)]
    holder = hold(Path(words[-1]))
    for place in ("experiment.report.render", "experiment.report.files.write"):
        monkeypatch.setattr(f"{place}.RENDER_WAIT_S", 0.1)
    assert main([*words, "--lang", "en"]) == ExitCode.USAGE
    assert list(out.iterdir()) == []
    monkeypatch.undo()
    gone = soon_gone(holder)
    assert main([*words, "--lang", "en"]) == ExitCode.OK
    assert gone.is_set()


ROWS = "Timestamp,Request tokens,Response tokens\n0,5,7\n1,6,8\n"
PLAN = (
    "plan", "--model", "gpt2", "--gpu", "a100-80gb", "--prompt-tokens", "9", "--new-tokens", "9",
    "--out",
)  # fmt: skip


@pytest.mark.parametrize("command", ["plan", "calibrate", "compare"])
@pytest.mark.parametrize("what", ["run/events.jsonl", "run/run.json", "trace.csv", "pipe"])
def test_what_another_command_wrote_is_not_replaced(
    command: str, what: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    run, place = sample_run(tmp_path / "run"), tmp_path / what
    (run / "run.json").write_text("{}", encoding="utf-8")
    (tmp_path / "trace.csv").write_text(ROWS, encoding="utf-8")
    os.mkfifo(tmp_path / "pipe")
    before = None if place.is_fifo() else place.read_bytes()
    words = {
        "plan": PLAN,
        "calibrate": ("calibrate", run, "--folds", "2", "--out"),
        "compare": ("compare", run, "--write-baseline"),
    }[command]
    assert str(place) in refused(*words, place)
    assert place.is_fifo() if before is None else place.read_bytes() == before


@pytest.mark.parametrize("make", [Path.touch, lambda _: None])
def test_its_own_file_or_an_empty_one_is_replaced(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    place = tmp_path / "plan.json"
    make(place)
    for _ in range(2):
        assert main([*PLAN, str(place)]) == ExitCode.OK
        assert place.read_bytes()


@pytest.mark.parametrize("file", ["events.jsonl", "sim.json"])
def test_a_sweep_takes_no_directory_whose_table_has_the_same_name(
    file: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    (tmp_path / file).touch()
    (tmp_path / "summary.csv").write_text("of a run", encoding="utf-8")
    assert "not empty" in refused(*COMMANDS["sweep"], "--out", tmp_path)
    assert (tmp_path / "summary.csv").read_text(encoding="utf-8") == "of a run"
