"""A name that slipped costs no log, no trace and no table of a run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from written_runs import sample_run

from experiment.commands.main import main
from experiment.text.errors import ExitCode

ROWS = "Timestamp,Request tokens,Response tokens\n0,5,7\n1,6,8\n"
PLAN = (
    "plan", "--model", "gpt2", "--gpu", "a100-80gb", "--prompt-tokens", "9", "--new-tokens", "9",
    "--out",
)  # fmt: skip


def words_for(command: str, run: Path, out: Path) -> list[str]:
    """A command that would write ``out``."""
    if command == "plan":
        return [*PLAN, str(out)]
    if command == "calibrate":
        return ["calibrate", str(run), "--folds", "2", "--out", str(out)]
    return ["compare", str(run), "--write-baseline", str(out)]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    directory: Path = sample_run(tmp_path / "run")
    (directory / "run.json").write_text("{}", encoding="utf-8")
    return directory


@pytest.mark.parametrize("command", ["plan", "calibrate", "compare"])
@pytest.mark.parametrize("what", ["the log of a run", "its summary", "a trace", "a pipe"])
def test_what_another_command_wrote_is_not_replaced(
    command: str, what: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = {
        "the log of a run": run / "events.jsonl",
        "its summary": run / "run.json",
        "a trace": tmp_path / "trace.csv",
        "a pipe": tmp_path / "pipe",
    }[what]
    (tmp_path / "trace.csv").write_text(ROWS, encoding="utf-8")
    os.mkfifo(tmp_path / "pipe")
    before = None if place.is_fifo() else place.read_bytes()
    assert main([*words_for(command, run, place), "--lang", "en"]) == ExitCode.USAGE
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert str(place) in line
    assert captured.out == ""
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
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / file).touch()
    (tmp_path / "summary.csv").write_text("of a run", encoding="utf-8")
    grid = ["trace='sharegpt-like'", "policy='paged'", "model='gpt2'", "gpu='a100-80gb'"]
    axes = [word for axis in (*grid, "requests=20") for word in ("--set", axis)]
    words = ["sweep", "--workers", "1", *axes, "--out", str(tmp_path), "--lang", "en"]
    assert main(words) == ExitCode.USAGE
    assert "not empty" in capsys.readouterr().err
    assert (tmp_path / "summary.csv").read_text(encoding="utf-8") == "of a run"
