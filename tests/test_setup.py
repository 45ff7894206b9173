"""Setting up with make: a step that fails leaves nothing that a later one trusts."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from guide_pages import ROOT
from sweeps import full

BASE = str(Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}")
READY = ".venv/constraints.txt"

pytestmark = pytest.mark.skipif(
    not shutil.which("make") or not Path(BASE).exists(), reason="there is no make or base Python"
)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A directory with what make needs for its first steps."""
    for name in ("Makefile", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def make(clone: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run make without the variables of the environment that the tests run in."""
    return subprocess.run(
        ["make", *words], cwd=clone, env={"PATH": "/usr/local/bin:/usr/bin:/bin"},
        capture_output=True, encoding="utf-8", check=False,
    )  # fmt: skip


def has_torch(python: str) -> bool:
    return subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 0


@full
# The second one kills make itself, as whoever runs out of memory or of power does.
@pytest.mark.parametrize("words", ["--no-index --find-links /nonexistent", "; kill -9 $$PPID \\#"])
def test_a_failed_installation_of_torch_is_repeated_with_its_arguments(
    words: str, clone: Path
) -> None:
    if has_torch(BASE):
        pytest.skip("the base Python has torch: make would not install it")
    assert make(clone, READY, f"PYTHON={BASE}", f"TORCH_ARGS={words}").returncode != 0
    again = make(clone, "-n", READY, f"PYTHON={BASE}", "TORCH_ARGS=--index-url RIGHT").stdout
    assert "pip install -q -c constraints.txt --index-url RIGHT torch" in again


def test_a_python_without_ensurepip_leaves_no_environment(clone: Path) -> None:
    broken = clone / "broken"
    broken.mkdir()
    (broken / "ensurepip.py").write_text("raise ImportError", encoding="utf-8")
    found = make(clone, READY, f"PYTHON=env PYTHONPATH={broken} {BASE}")
    assert found.returncode != 0
    assert "python3-venv" in found.stdout
    assert not (clone / ".venv").exists()


@pytest.mark.parametrize("kind", ["lowest", "newest"])
def test_a_half_made_environment_of_a_test_is_made_again(kind: str, clone: Path) -> None:
    python = clone / f".venv-{kind}" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to("/bin/true")  # venv leaves a python without pip where ensurepip fails
    found = make(clone, f"test-{kind}", "PYTHON=false")
    assert found.returncode != 0
    assert f"false -m venv .venv-{kind}" in found.stdout
    assert "pip install" not in found.stdout


@full
def test_the_torch_of_an_active_environment_is_used(clone: Path) -> None:
    if sys.prefix == sys.base_prefix or not has_torch(sys.executable):
        pytest.skip("the tests do not run in an environment of its own with torch")
    within = clone / "within"  # an environment that sees the torch of the first one
    within.mkdir()
    for name in ("Makefile", "constraints.txt"):
        shutil.copy(ROOT / name, within)
    for place, python in ((clone, Path(sys.executable)), (within, clone / ".venv/bin/python")):
        made = make(place, READY, f"PYTHON={python}", "TORCH_ARGS=--no-index")
        assert made.returncode == 0, made.stderr
        assert has_torch(str(place / ".venv/bin/python"))
        assert "torch==" not in (place / READY).read_text(encoding="utf-8").split()
