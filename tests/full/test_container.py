"""The image: its steps work in a clean environment, and its files agree with each other."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from guide_pages import ROOT, read
from source_tree import copy_tree

FOLDER = ".devcontainer"
DOCKERFILE = read(f"{FOLDER}/Dockerfile")

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")


def steps() -> list[list[str]]:
    """Words behind the script in each line of the Dockerfile."""
    ran = re.findall(r"setup\.sh ([^&\n]+)", DOCKERFILE.partition("FROM")[2])
    return [line.replace('"$TORCH_BACKEND"', "cpu").split() for line in ran]


def test_the_steps_of_the_image_work_in_a_clean_environment(tmp_path: Path) -> None:
    """Packages are borrowed from this environment, so that nothing is fetched."""
    pytest.importorskip("setuptools")
    tree = copy_tree(tmp_path / "clone")
    for name in (FOLDER, ".github"):
        shutil.copytree(ROOT / name, tree / name)
    made = tmp_path / "venv"
    venv.create(made)
    borrowed = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    packages = next(made.rglob("site-packages"))
    (packages / "borrowed.pth").write_text("\n".join(borrowed) + "\n", encoding="utf-8")
    pip = made / "bin" / "pip"  # the last file of a whole environment
    pip.write_text(f'#!/bin/sh\nexec "{made}/bin/python" -m pip "$@"\n', encoding="utf-8")
    pip.chmod(0o755)
    home = tmp_path / "home"
    home.mkdir()
    clean = {
        "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(home), "OMP_NUM_THREADS": "1",
        "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0",
    }  # fmt: skip
    for step, _, *words in steps():
        some = [word for word in words if word != "gpt2"]  # half a gibibyte
        subprocess.run(
            [str(tree / FOLDER / "setup.sh"), step, str(made), *some], cwd=tmp_path, env=clean,
            check=True, timeout=540,
        )  # fmt: skip
    cache = home / ".cache/pagedkv-lab"
    assert [path.name.split("-r")[0] for path in (cache / "models").iterdir()] == ["tiny-gpt2"]
    assert list(home.rglob("*.nbc")), "no compiled code was kept"
    assert not (tree / "reports" / "tiny-gpt2").exists()
