"""Two commands that write into one directory at once: one of them refuses, or waits for the other.

What holds a directory here is a process of its own, as another command is.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from programs import Starter, is_gone
from texts import fixed
from written_runs import sample_run

from experiment.analysis.conclusions import evaluate
from experiment.commands.main import main
from experiment.files.locks import directory_lock, is_locked
from experiment.record.log import EVENTS_FILE, EventLog, read_record
from experiment.report.files import write
from experiment.text.errors import ExitCode

ROOT = Path(__file__).parents[2]
HOLDER = """
import sys, time
from pathlib import Path
from experiment.files.locks import directory_lock
with directory_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
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
Hold = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def hold() -> Iterator[Hold]:
    """Have a directory in another process, for so many seconds."""
    started: list[subprocess.Popen[str]] = []

    def begin(directory: Path, seconds: float = 60.0) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(directory), str(seconds)],
            stdout=subprocess.PIPE, encoding="utf-8", cwd=ROOT,
        )  # fmt: skip
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def soon_gone(holder: subprocess.Popen[str]) -> threading.Event:
    """End a holder in half a second; set as soon as it is."""
    gone = threading.Event()

    def end() -> None:
        gone.set()
        holder.kill()

    threading.Timer(0.5, end).start()
    return gone


@pytest.fixture(scope="module")
def simulation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("simulation") / "out"
    assert main([*SIMULATE, "--out", str(out), "--lang", "en"]) == ExitCode.OK
    return out


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_refuses_a_directory_that_another_one_has(
    name: str, hold: Hold, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    hold(out)
    assert main([*COMMANDS[name], "--out", str(out), "--lang", "en"]) == ExitCode.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert str(out) in line
    assert fixed("error.run_in_use") in line
    assert list(out.iterdir()) == []


def test_of_two_runs_that_begin_at_once_one_writes(start: Starter, tmp_path: Path) -> None:
    both = [start(pause_s=0.2, out=tmp_path / "both") for _ in range(2)]
    ended = [(p.process.communicate(timeout=60), p.process.returncode) for p in both]
    assert sorted(code for _, code in ended) == [ExitCode.OK, ExitCode.USAGE]
    ((_, err),) = [printed for printed, code in ended if code == ExitCode.USAGE]
    (line,) = err.splitlines()
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


def test_what_is_drawn_waits_until_another_one_is_done(
    hold: Hold, simulation: Path, tmp_path: Path
) -> None:
    """Drawing takes seconds, and files of two that draw at once would not agree."""
    gone = soon_gone(hold(simulation))
    assert main(["render", str(simulation), "--lang", "zh"]) == ExitCode.OK
    assert gone.is_set()


def test_a_comparison_is_written_when_another_one_is_done(
    hold: Hold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, run = tmp_path / "out", str(sample_run(tmp_path / "run"))
    out.mkdir()
    words = ["compare", run, run, "--out", str(out), "--lang", "en"]
    process = hold(out)
    monkeypatch.setattr(write, "RENDER_WAIT_S", 0.1)
    assert main(words) == ExitCode.USAGE
    assert list(out.iterdir()) == []
    monkeypatch.undo()
    soon_gone(process)
    assert main(words) == ExitCode.OK


def test_whoever_draws_does_not_wait_for_ever(
    hold: Hold, simulation: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiment.report.render.RENDER_WAIT_S", 0.2)
    hold(simulation)
    assert main(["render", str(simulation), "--lang", "en"]) == ExitCode.USAGE
