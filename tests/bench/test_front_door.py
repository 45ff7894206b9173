"""What is timed at the front door: as a person sees it, ended in time, and with the benchmark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from real_parts import is_gone

from experiment.bench import front_door as timed
from experiment.text.messages import message

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
from pathlib import Path
from experiment.bench import front_door
front_door.DOOR = Path(sys.argv[1])
front_door.HELP_RUNS = int(sys.argv[3])
front_door.front_door(Path(sys.argv[2]), walkthrough=not front_door.HELP_RUNS)
"""
# Says what it was given and sees, and prints more than any terminal holds back.
SEEING = """
import json, os, sys
from pathlib import Path
at = Path(sys.argv[sys.argv.index("--out") + 1])
at.mkdir(parents=True)
names = ("TERM", "COLUMNS", "LINES")
streams = (sys.stdin, sys.stdout, sys.stderr)
seen = {"words": sys.argv[1:], "terminal": [each.isatty() for each in streams],
        "variables": {name: os.environ.get(name) for name in names}}
(at / "seen.json").write_text(json.dumps(seen), encoding="utf-8")
print("x" * 1_000_000)
"""


def door(place: Path, program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A front door of ours, without help."""
    path = place / "door.py"
    path.write_text(program, encoding="utf-8")
    monkeypatch.setattr(timed, "DOOR", path)
    monkeypatch.setattr(timed, "HELP_RUNS", 0)
    monkeypatch.setattr(timed, "_LIMIT_S", 30.0)


def seen(place: Path, number: int) -> dict[str, Any]:
    text = (place / f"walkthrough-{number}" / "seen.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def test_a_walkthrough_prints_all_that_a_person_sees_to_a_terminal_that_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    door(tmp_path, SEEING, monkeypatch)
    monkeypatch.setenv("TERM", "vt100")
    monkeypatch.setenv("COLUMNS", "123")
    threads, files = psutil.Process().num_threads(), psutil.Process().num_fds()
    found = timed.front_door(tmp_path, walkthrough=True)
    assert len(found["walkthrough_s"]) == timed.WALKTHROUGH_RUNS
    assert all(0 < seconds < 60 for seconds in found["walkthrough_s"])
    for number in range(timed.WALKTHROUGH_RUNS):
        told = seen(tmp_path, number)
        assert told["words"][:-1] == ["--yes", "--offline", "--out"]
        assert told["terminal"] == [False, True, True]  # nobody is asked anything
        assert told["variables"]["TERM"] == "vt100"
        assert told["variables"]["COLUMNS"] == "123"
    assert (psutil.Process().num_threads(), psutil.Process().num_fds()) == (threads, files)


def test_a_terminal_that_nobody_described_has_a_name_and_a_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    door(tmp_path, SEEING, monkeypatch)
    for name in ("TERM", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    timed.front_door(tmp_path, walkthrough=True)
    told = seen(tmp_path, 0)["variables"]
    assert told["TERM"]
    assert int(told["COLUMNS"]) > 0
    assert int(told["LINES"]) > 0


@pytest.mark.parametrize("why", ["none left", "none at all"])
def test_without_a_terminal_a_walkthrough_is_timed_all_the_same(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left() -> tuple[int, int]:
        raise OSError("out of pty devices")

    door(tmp_path, SEEING, monkeypatch)
    if why == "none left":
        monkeypatch.setattr(os, "openpty", none_left)
    else:
        monkeypatch.delattr(os, "openpty")
    found = timed.front_door(tmp_path, walkthrough=True)
    assert len(found["walkthrough_s"]) == timed.WALKTHROUGH_RUNS
    assert seen(tmp_path, 0)["terminal"] == [False, False, False]


def test_a_walkthrough_that_takes_too_long_is_killed_whoever_else_holds_its_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = tmp_path / "begun"
    door(
        tmp_path,
        f"""
import os, pathlib, subprocess, sys, time
left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path({str(begun)!r}).write_text(f"{{os.getpid()}} {{left.pid}}", encoding="utf-8")
time.sleep(600)
""",
        monkeypatch,
    )
    monkeypatch.setattr(timed, "_LIMIT_S", 3.0)
    began = time.monotonic()
    found = timed.front_door(tmp_path, walkthrough=True)
    assert time.monotonic() - began < 60
    mine, left = map(int, begun.read_text(encoding="utf-8").split())
    try:
        assert found["walkthrough_s"] == []
        assert found["reason"] == message("bench.door_failed", code=None).model_dump(mode="json")
        assert is_gone(mine)
    finally:
        os.kill(left, signal.SIGKILL)


@pytest.mark.parametrize("helps", [1, 0], ids=["help", "walkthrough"])
def test_a_program_that_is_timed_ends_with_a_benchmark_that_is_killed(
    helps: int, tmp_path: Path
) -> None:
    path, begun = tmp_path / "door.py", tmp_path / "begun"
    path.write_text(
        f"import pathlib, time\npathlib.Path({str(begun)!r}).touch()\ntime.sleep(600)\n",
        encoding="utf-8",
    )
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(path), str(tmp_path), str(helps)],
        cwd=ROOT, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    below: list[psutil.Process] = []
    try:
        while not begun.exists():
            assert process.poll() is None
            time.sleep(0.05)
        below = psutil.Process(process.pid).children(recursive=True)
        assert [each for each in below if str(path) in each.cmdline()]
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert all(is_gone(each.pid) for each in below)
    finally:
        process.kill()
        for each in below:
            if each.is_running():
                each.kill()
