"""``sweep``: from a grid in a file to cells and a summary, and on from where it stopped."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from experiment.commands.main import main
from experiment.config.reading import read_toml
from experiment.simulate.sweep import make_cells, read_grid
from experiment.text import LANGUAGES
from experiment.text.errors import ExitCode

CONFIG = """
[sweep]
model = "opt-13b"
gpu = "a100-40gb"
kv_budget = ["1KiB", "4GiB"]
policy = ["max", "paged"]
block_size = [8, 16]
trace = "alpaca-like"
requests = 40
"""
CONFIGS = sorted((Path(__file__).parent.parent / "configs").glob("sweep-*.toml"))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "grid.toml"
    path.write_text(CONFIG, encoding="utf-8")
    return path


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (directory / "cells").iterdir()}


@pytest.mark.parametrize("asked", ["0", "1"])
def test_the_mark_of_excel_is_written_where_it_is_asked_for(
    config: Path, tmp_path: Path, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGEDKV_CSV_BOM", asked)
    assert main(["sweep", str(config), "--out", str(tmp_path), "--workers", "1"]) == ExitCode.OK
    table = (tmp_path / "summary.csv").read_bytes()
    assert table.startswith(b"\xef\xbb\xbf") == (asked == "1")


@pytest.mark.parametrize("lang", LANGUAGES)
def test_a_grid_becomes_cells_and_a_summary(
    config: Path, lang: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["sweep", str(config), "--lang", lang, "--out", str(out), "--workers", "1"]
    assert main(words) == ExitCode.OK
    with (out / "summary.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6
    assert {row["error"] for row in rows if row["budget_bytes"] == "1024"} == {"pool_too_small"}
    held = [row for row in rows if row["budget_bytes"] != "1024"]
    assert [row["finished"] for row in held] == ["40"] * 3
    assert [row["block_size"] for row in held] == ["", "8", "16"]
    assert float(held[0]["running_max"]) < float(held[1]["running_max"])
    capsys.readouterr()


def test_a_second_time_computes_nothing_and_a_new_axis_only_what_is_new(
    config: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    words = ["sweep", str(config), "--lang", "en", "--out", str(out), "--workers", "1"]
    assert main(words) == ExitCode.OK
    before, summary = files(out), (out / "summary.csv").read_bytes()

    def nobody(*_: object) -> None:
        raise AssertionError("a finished cell is computed again")

    with monkeypatch.context() as patched:
        patched.setattr("kvsim.sweep.processes.run_in_processes", nobody)
        assert main(words) == ExitCode.OK
    assert "6 cells done; 0 left" in capsys.readouterr().out
    assert (out / "summary.csv").read_bytes() == summary
    gone = next(iter(sorted(before)))
    (out / "cells" / gone).unlink()
    assert main([*words, "--set", "block_size=[8,16,32]"]) == ExitCode.OK
    assert "6 cells done" not in capsys.readouterr().out
    after = files(out)
    assert before.items() <= after.items()
    assert len(after) == 8


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "Name a grid"),
        (["--set", "policy=paged"], "model, gpu, trace"),
        (["CONFIG", "--set", "colour=red"], "axis colour"),
        (["CONFIG", "--set", "kv_budget=12GB"], "not a size"),
        (["CONFIG", "--set", "model=opt-13bb"], "opt-13b?"),
        (["CONFIG", "--set", "policy=pagd"], "of static"),
        (["CONFIG", "--set", "gpu=a1000"], "GPU a1000"),
        (["CONFIG", "--set", "trace=nowhere.csv"], "nowhere.csv"),
        (["CONFIG", "--workers", "0"], "--workers: 0"),
        (["missing.toml"], "missing.toml"),
    ],
)
def test_what_is_wrong_is_one_line(
    words: list[str], said: str, config: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    words = [str(config) if word == "CONFIG" else word for word in words]
    assert said in refused("sweep", *words, "--out", tmp_path / "out")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_grids_of_the_repository_make_cells(path: Path) -> None:
    assert set(read_toml(path)) == {"sweep"}
    assert 10 <= len(make_cells(read_grid(str(path), ()))) <= 1000


def test_a_cell_whose_figure_is_none_is_one_line(
    config: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    """It is read as a cell, and shows what it is only where it is written down."""
    words = ["sweep", str(config), "--workers", "1", "--out", str(tmp_path / "out")]
    assert main(words) == ExitCode.OK
    places = (tmp_path / "out" / "cells").iterdir()
    told = {place: json.loads(place.read_text(encoding="utf-8")) for place in places}
    place, cell = next((place, cell) for place, cell in told.items() if cell.get("result"))
    cell["result"]["states"]["live"]["mean_percent"] = "many"
    place.write_text(json.dumps(cell), encoding="utf-8")
    assert str(tmp_path / "out") in refused(*words)
