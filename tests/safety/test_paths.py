"""Nothing that a config or a run directory says makes the program write outside of its place."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from written_runs import sample_run

from experiment.commands.main import main
from experiment.files.bounded_reading import check_inside
from experiment.text.errors import ExitCode
from kvsim.sweep import CellStore


def snapshot(directory: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory that no command names, with a file of its own."""
    path = tmp_path / "outside"
    path.mkdir()
    (path / "kept").write_text("kept", encoding="utf-8")
    return path


def test_drawing_a_run_follows_no_planted_link(tmp_path: Path, outside: Path) -> None:
    run = sample_run(tmp_path / "run")
    for name in ("report.html", "summary.csv", "run.json", "timeline.csv"):
        (run / name).symlink_to(outside / "kept")
    (run / "plots").symlink_to(outside, target_is_directory=True)
    before = snapshot(outside)
    assert main(["render", str(run), "--lang", "en"]) == ExitCode.UNWRITABLE  # the plots
    assert snapshot(outside) == before
    assert not (run / "report.html").is_symlink()
    assert "<html" in (run / "report.html").read_text(encoding="utf-8")


def test_cells_of_a_sweep_stay_in_its_directory(tmp_path: Path, outside: Path) -> None:
    (tmp_path / "cells").symlink_to(outside, target_is_directory=True)
    with pytest.raises(OSError, match="symbolic links"):
        CellStore(tmp_path)


@pytest.mark.parametrize("name", ["../../evil", "/evil", "~/evil"])
def test_names_in_a_config_are_no_way_out(
    tmp_path: Path, name: str, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an arm, an experiment, a model, a policy, a trace, a cell of a sweep."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    place = tmp_path / "deep" / "out"
    for words in (
        ["--yes", "--arms", name],
        ["--yes", "--set", f"experiment.name={json.dumps(name)}"],
        ["sweep", "--set", f"trace={json.dumps(name)}", "--set", "policy='paged'", "--set",
         "model='gpt2'", "--set", "gpu='a100-80gb'"],
        ["simulate", "--trace", name, "--model", "gpt2", "--gpu", "a100-80gb"],
        ["simulate", "--trace", "sharegpt-like", "--model", name, "--gpu", "a100-80gb"],
        ["simulate", "--trace", "sharegpt-like", "--model", "gpt2", "--gpu", name],
    ):  # fmt: skip
        refused(*words, "--out", place)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_path_is_checked_below_its_root_alone(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    root = tmp_path / "root"
    root.symlink_to(real)  # the person's own link, not one in the directory
    assert check_inside(root, root / "a" / "b") == root / "a" / "b"
    (real / "link").symlink_to("/")
    assert check_inside(root, root / "link") == root / "link"  # replaced, never followed
    with pytest.raises(OSError, match="symbolic links"):
        check_inside(root, root / "link" / "b")
    with pytest.raises(OSError, match="symbolic links"):
        check_inside(root, root / "link", opened=True)
    with pytest.raises(OSError, match="symbolic links"):
        check_inside(root, root / ".." / "b")
    with pytest.raises(ValueError, match="subpath"):
        check_inside(root, tmp_path / "other")
