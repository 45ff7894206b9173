"""Drawing a long log takes memory in proportion to its length: a process draws it and is measured.

The peak is the system's own figure of that process, with interpreter and libraries.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sweeps import full
from written_runs import long_run

ROOT = Path(__file__).parents[2]
MIB = 1 << 20
NEW = 10  # tokens of each request, so as many steps
# Requests, and the most bytes.
SIZES = [(2000, 300 * MIB), pytest.param(10_000, 1024 * MIB, marks=full)]
PROGRAM = """
import sys
from experiment.commands.main import main
code = main(["render", sys.argv[1], "--lang", "en"])
status = open("/proc/self/status").read()
print(status.split("VmHWM:")[1].split()[0], file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="another system")
@pytest.mark.parametrize(("requests", "most"), SIZES)
def test_a_long_log_is_drawn_within_its_memory(requests: int, most: int, tmp_path: Path) -> None:
    run = long_run(tmp_path / "run", requests, NEW)
    usual = {name: value for name, value in os.environ.items() if name != "PAGEDKV_MEMORY"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(run)],
        cwd=ROOT, env=usual, capture_output=True, text=True, encoding="utf-8", check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    peak = int(done.stderr.split()[-1]) << 10
    (arm,) = json.loads((run / "run.json").read_text(encoding="utf-8"))["results"]["arms"]
    assert (arm["steps"], arm["problems"]) == (requests * NEW, [])
    assert arm["simulator"]["agrees"]
    assert (run / "timeline.csv").read_text(encoding="utf-8").count("\n") == requests * NEW + 2
    assert (run / "report.html").exists()
    assert peak < most, f"{peak / MIB:.0f} MiB"
