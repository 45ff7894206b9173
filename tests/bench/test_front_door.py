"""What is timed at the front door is nobody's once the benchmark is gone."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
from real_parts import is_gone

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
from pathlib import Path
from experiment.bench import front_door
front_door.DOOR, front_door.HELP_RUNS = Path(sys.argv[1]), 1
front_door.front_door(Path(sys.argv[2]), walkthrough=False)
"""


def test_a_program_that_is_timed_ends_with_a_benchmark_that_is_killed(tmp_path: Path) -> None:
    door, begun = tmp_path / "door.py", tmp_path / "begun"
    door.write_text(
        f"import pathlib, time\npathlib.Path({str(begun)!r}).touch()\ntime.sleep(600)\n",
        encoding="utf-8",
    )
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(door), str(tmp_path)],
        cwd=ROOT, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    below: list[psutil.Process] = []
    try:
        while not begun.exists():
            assert process.poll() is None
            time.sleep(0.05)
        below = psutil.Process(process.pid).children(recursive=True)
        assert [each for each in below if str(door) in each.cmdline()]
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert all(is_gone(each.pid) for each in below)
    finally:
        process.kill()
        for each in below:
            if each.is_running():
                each.kill()
