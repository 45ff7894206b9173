"""The whole command ``gpucheck``, as a person types it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from guide_pages import ROOT

from experiment.gpucheck.result import NEEDS_GPU, read_result
from experiment.text.errors import ExitCode


def test_every_part_that_this_machine_can_run_passes(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, str(ROOT / "run_experiment.py"), "gpucheck", "--lang", "zh",
         "--out", str(out)],
        cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", check=False,
    )  # fmt: skip
    assert done.returncode == ExitCode.OK, done.stdout + done.stderr
    data = read_result(out)
    for part in data.parts:
        if data.device == "cpu" and part.part in ("graphs", "swap", "speed"):
            assert (part.verdict, part.reason) == ("skipped", NEEDS_GPU)
        else:
            assert part.verdict == "pass"
