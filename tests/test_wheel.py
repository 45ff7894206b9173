"""An installed wheel, in an environment of its own: what it holds, runs, and calls itself."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
import yaml
from event_makers import whole_run
from guide_pages import ROOT, read
from source_tree import copy_tree

from experiment.events import encode
from experiment.experiments.registry import EXPERIMENTS
from experiment.messages import ExitCode

pytest.importorskip("setuptools")


def run(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command away from the repository."""
    variables = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    return subprocess.run(
        [str(word) for word in words],
        cwd=cwd, env=variables, capture_output=True, encoding="utf-8", check=False, timeout=300,
    )  # fmt: skip


def call(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command that must end well, away from the repository."""
    done = run(*words, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, of a copy of the repository."""
    place = tmp_path_factory.mktemp("sources")
    tree = copy_tree(place / "tree")
    code = f"from setuptools import build_meta; build_meta.build_sdist({str(place)!r})"
    call(sys.executable, "-c", code, cwd=tree)
    (found,) = place.glob("*.tar.gz")
    return found


@pytest.fixture(scope="module")
def wheel(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from it as pip builds it, but with the tools that are here: nothing is fetched."""
    place = tmp_path_factory.mktemp("wheel")
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet")
    call(sys.executable, "-m", "pip", "wheel", *options, "-w", place, sources, cwd=place)
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


def test_a_source_distribution_holds_all_of_the_repository(sources: Path, tmp_path: Path) -> None:
    with tarfile.open(sources) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    tree = copy_tree(tmp_path / "tree")
    files = {path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()}
    assert {name for name in files if not name.startswith(".")} <= held


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
    assert re.search(r"^<pre class=\"code\"[^>]*>pagedkv\b", page, re.MULTILINE)
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


def test_the_workflow_to_copy_holds_a_run_against_the_files_that_its_page_begins_with(
    pagedkv: Path, tmp_path: Path
) -> None:
    page = read("docs/compare.md")
    (tmp_path / "kv").mkdir()
    for name, text in re.findall(r"^```toml\n# (kv/\S+)\n(.*?)^```", page, re.M | re.S):
        (tmp_path / name).write_text(text, encoding="utf-8")
    (made,) = re.findall(r"^\| `kv/baseline.json` \| (.*) \|$", page, re.M)
    for line in re.findall(r"`pagedkv (.*?)`", made):
        call(pagedkv, *shlex.split(line), "--lang", "en", cwd=tmp_path)
    baseline = tmp_path / "kv/baseline.json"
    data = json.loads(baseline.read_text(encoding="utf-8"))
    data["figures"]["paged/wasted_slots"] -= 1
    baseline.write_text(json.dumps(data), encoding="utf-8")
    steps = yaml.safe_load(read("docs/ci-example.yml"))["jobs"]["gate"]["steps"]
    (line,) = [step["run"] for step in steps if step.get("run", "").startswith("pagedkv ")]
    shutil.rmtree(tmp_path / "reports")
    done = run(pagedkv, *shlex.split(line)[1:], cwd=tmp_path)
    assert done.returncode == ExitCode.GATE, done.stdout + done.stderr
    (limits,) = re.findall(r"^```toml\n# kv/gate.toml\n(.*?)^```", page, re.M | re.S)
    assert f"1 of {limits.count(' = {')}" in done.stdout  # with the baseline as it was, none


def test_the_build_backend_is_one_of_the_tools_for_development() -> None:
    needed = [line for line in read("pyproject.toml").splitlines() if "setuptools>=" in line]
    assert len(needed) == 2  # to build, and for this file
