"""Every experiment for real, on every arm that can run it: `make test-full`.

docs/experiments.md says how long each takes. PAGEDKV_FULL_SIZE=quick takes the small sizes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiment.experiments.registry import EXPERIMENTS
from experiment.messages import ExitCode

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_the_experiment_runs_and_its_counts_are_foretold(name: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["--config", str(ROOT / "configs" / f"{name}.toml"), "--yes", "--quiet"]
    if os.environ.get("PAGEDKV_FULL_SIZE") == "quick":
        words.append("--quick")
    environment = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, str(ROOT / "run_experiment.py"), *words, "--out", str(out)],
        capture_output=True, text=True, encoding="utf-8", errors="replace", env=environment,
        check=False,
    )  # fmt: skip
    print(done.stdout)
    assert done.returncode == ExitCode.OK, done.stderr
    found = json.loads((out / "run.json").read_text(encoding="utf-8"))["results"]["experiment"]
    assert found["problems"] == []
    assert len(found["cells"]) == found["cells_planned"]
    for cell in found["cells"]:
        # Of serving what is counted in steps is repeated once.
        once = name == "serving" and cell["values"]["clock"] == "steps"
        for arm in cell["arms"]:
            if arm["status"] == "skipped":
                assert arm["reason"], arm
                continue
            assert arm["status"] == "finished", arm
            assert arm["repeats"] == (1 if once else found["repeats"])
