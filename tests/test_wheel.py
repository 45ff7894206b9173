"""An installed wheel, in an environment of its own: what it holds, runs, and calls itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from event_makers import whole_run
from guide_pages import ROOT, read
from source_tree import copy_tree

from experiment.events import encode
from experiment.experiments.registry import EXPERIMENTS

pytest.importorskip("setuptools")


def call(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command that must end well, away from the repository."""
    variables = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd, env=variables, capture_output=True, encoding="utf-8", check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as pip builds it, but with the tools that are here: nothing is fetched."""
    place = tmp_path_factory.mktemp("wheel")
    tree = copy_tree(place / "tree")
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet")
    call(sys.executable, "-m", "pip", "wheel", *options, "-w", place, tree, cwd=place)
    (found,) = place.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def pagedkv(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of an installation of it; what it depends on is borrowed from this one."""
    place = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(place, with_pip=False)
    scripts = place / ("Scripts" if os.name == "nt" else "bin")
    call(
        sys.executable, "-m", "pip", "--python", scripts / "python", "install",
        "--no-deps", "--no-index", "--quiet", wheel, cwd=place,
    )  # fmt: skip
    packages = next(place.rglob("site-packages"))
    # Directories alone: what a file in them adds, such as this repository, stays out.
    borrowed = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (packages / "borrowed.pth").write_text("\n".join(borrowed) + "\n", encoding="utf-8")
    return scripts / "pagedkv"


def test_a_wheel_holds_all_that_is_no_python(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    templates = {
        str(path.relative_to(ROOT)) for path in (ROOT / "experiment/report/templates").iterdir()
    }
    configs = {f"experiment/configs/{path.name}" for path in (ROOT / "configs").glob("*.toml")}
    others = {f"experiment/i18n/{lang}.toml" for lang in ("en", "zh")}
    typed = {f"{package}/py.typed" for package in ("experiment", "kvsim")}
    assert len(templates) > 3
    assert len(configs) > len(EXPERIMENTS)
    assert templates | configs | others | typed <= names
    assert not [name for name in names if name.startswith(("tests/", "docs/", "reports/"))]


def test_a_report_made_by_a_wheel_says_how_to_run_it_again_with_pagedkv(
    pagedkv: Path, tmp_path: Path
) -> None:
    log = "".join(encode(event) + "\n" for event in whole_run())
    (tmp_path / "events.jsonl").write_text(log, encoding="utf-8")
    call(pagedkv, "render", tmp_path, "--lang", "zh", cwd=tmp_path)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert re.search(r"^<pre class=\"code\">pagedkv\b", page, re.MULTILINE)
    assert "run_experiment.py" not in page


def test_the_command_of_a_wheel_calls_itself_pagedkv(pagedkv: Path, tmp_path: Path) -> None:
    for words in (["--help"], ["plan", "--help"], ["--list-experiments"]):
        said = call(pagedkv, *words, "--lang", "en", cwd=tmp_path).stdout
        assert "pagedkv" in said
        assert "run_experiment.py" not in said


def test_a_wheel_finds_every_experiment_away_from_the_repository(
    pagedkv: Path, tmp_path: Path
) -> None:
    said = call(pagedkv, "--list-experiments", cwd=tmp_path).stdout
    assert {line.split()[0] for line in said.splitlines() if line} >= set(EXPERIMENTS)
    code = "import experiment; print(experiment.__file__)"
    place = call(pagedkv.parent / "python", "-c", code, cwd=tmp_path).stdout
    assert "site-packages" in place


def test_the_build_backend_is_one_of_the_tools_for_development() -> None:
    needed = [line for line in read("pyproject.toml").splitlines() if "setuptools>=" in line]
    assert len(needed) == 2  # to build, and for this file
