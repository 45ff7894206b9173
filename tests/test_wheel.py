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
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from guide_pages import ROOT, commands, read
from packaging.requirements import Requirement
from source_tree import copy_tree
from sweeps import full

from experiment.experiments.registry import EXPERIMENTS
from experiment.text.errors import ExitCode

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


def install(wheel: Path, place: Path, borrowed: Iterable[str]) -> Path:
    """The command of an installation of it; what it depends on lies in other directories."""
    venv.create(place, with_pip=False)
    scripts = place / ("Scripts" if os.name == "nt" else "bin")
    call(
        sys.executable, "-m", "pip", "--python", scripts / "python", "install",
        "--no-deps", "--no-index", "--quiet", wheel, cwd=place,
    )  # fmt: skip
    packages = next(place.rglob("site-packages"))
    (packages / "borrowed.pth").write_text("\n".join(borrowed) + "\n", encoding="utf-8")
    return scripts / "pagedkv"


@pytest.fixture(scope="module")
def pagedkv(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With all that it depends on."""
    # Directories alone: what a file in them adds, such as this repository, stays out.
    borrowed = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    return install(wheel, tmp_path_factory.mktemp("installed") / "venv", borrowed)


@pytest.fixture(scope="module")
def simulator(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With what the guide lists for simulations, and what that depends on."""
    listed = [one[2:] for one in commands("docs/install.md") if one[:2] == ["pip", "install"]]
    (wanted,) = [names for names in listed if "jinja2" in names]
    place = tmp_path_factory.mktemp("simulator")
    borrowed, done = place / "borrowed", set[str]()
    borrowed.mkdir()
    while wanted:
        if (name := wanted.pop().lower()) in done:
            continue
        done.add(name)
        found = metadata.distribution(name)
        needs = [Requirement(line) for line in found.requires or ()]
        wanted += [n.name for n in needs if n.marker is None or n.marker.evaluate({"extra": ""})]
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            if not (borrowed / top).exists():
                (borrowed / top).symlink_to(str(found.locate_file(top)))
    return install(wheel, place / "venv", [str(borrowed)])


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
    configs = {f"experiment/configs/{path.name}" for path in (ROOT / "configs").iterdir()}
    others = {f"experiment/text/{lang}.toml" for lang in ("en", "zh")}
    typed = {f"{package}/py.typed" for package in ("experiment", "kvsim")}
    assert len(templates) > 3
    assert len(configs) > len(EXPERIMENTS)
    assert templates | configs | others | typed <= names
    assert not [name for name in names if name.startswith(("tests/", "docs/", "reports/"))]


def test_simulations_need_no_torch(simulator: Path, tmp_path: Path) -> None:
    trace = ("--trace", "sharegpt-like", "--requests", "20", "--rate", "2")
    lengths = ("--prompt-tokens", "100", "--new-tokens", "20")
    machine = ("--model", "opt-13b", "--gpu", "a100-80gb", "--lang", "en")
    call(simulator, "simulate", *trace, *machine, "--out", "sim", cwd=tmp_path)
    (tmp_path / "sim/report.html").unlink()
    call(simulator, "render", "sim", cwd=tmp_path)
    assert (tmp_path / "sim/report.html").exists()
    assert "vllm serve" in call(simulator, "plan", *lengths, *machine, cwd=tmp_path).stdout
    assert "simulate" in call(simulator.parent / "python", "-m", "kvsim", cwd=tmp_path).stdout


@pytest.mark.parametrize("command", ["quick", "selfcheck", "claims", "bench"])
def test_a_run_without_torch_is_refused_in_one_line_with_the_command_to_install_it(
    simulator: Path, tmp_path: Path, command: str
) -> None:
    done = run(simulator, command, "--lang", "en", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    (line,) = done.stderr.splitlines()
    assert "torch" in line
    assert "pip install pagedkv-lab" in line


def test_a_wheel_without_anything_names_what_is_missing_in_one_line(
    simulator: Path, tmp_path: Path
) -> None:
    packages = next(simulator.parent.parent.rglob("site-packages"))
    code = f"import sys; sys.path.append({str(packages)!r}); from experiment.__main__ import entry"
    done = run(simulator.parent / "python", "-S", "-c", f"{code}; entry()", cwd=tmp_path)
    assert done.returncode == ExitCode.USAGE
    (line,) = done.stderr.splitlines()
    assert "pydantic" in line
    assert "pip install pagedkv-lab" in line


def test_a_wheel_finds_every_experiment_away_from_the_repository(
    simulator: Path, tmp_path: Path
) -> None:
    said = call(simulator, "--list-experiments", cwd=tmp_path).stdout
    assert {line.split()[0] for line in said.splitlines() if line} >= set(EXPERIMENTS)
    code = "import experiment; print(experiment.__file__)"
    place = call(simulator.parent / "python", "-c", code, cwd=tmp_path).stdout
    assert "site-packages" in place


@full
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
