"""Runs triton_checks.py in a process where Triton interprets its kernels."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="needs Triton (Linux on x86-64)"
)
HERE = Path(__file__).parent


def test_the_kernels_are_right_in_the_interpreter(tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "TRITON_CACHE_DIR": str(tmp_path)}
    words = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(HERE / "triton_checks.py")]
    done = subprocess.run(
        [sys.executable, *words, f"--rootdir={HERE.parents[1]}"],
        env=environment, cwd=HERE.parents[1], capture_output=True, text=True, check=False,
        encoding="utf-8",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) > 40
    assert "skipped" not in done.stdout
