"""Many quick runs in one process, and what is left of each: prints a line of JSON for each.

python many_runs.py --runs 200 --out DIR              every stage of every run in a real process
python many_runs.py --runs 15 --out DIR --replayed    from the second run on the stages are
                                                      processes that repeat what the first said
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import psutil  # noqa: E402

from experiment import runner  # noqa: E402
from experiment.cli import main  # noqa: E402
from experiment.process import Child  # noqa: E402

SHARED, FILES = Path("/dev/shm"), Path("/proc/self/fd")
WORDS = (
    "--yes", "--quiet", "--device", "cpu", "--model", "tiny-gpt2", "--arms", "paged", "--prompt",
    "Hello", "--max-new-tokens", "2", "--max-length", "32", "--threads", "1",
    "--set", "engine.kernel=torch", "--set", "engine.packed_weights=false",
)  # fmt: skip
# What the runner adds to an arm's events by itself.
_RUNNERS = {
    "reading", "baseline", "usage", "sampler_cost", "high_water_reset", "foreign_processes",
    "notice", "run_started", "run_finished",
}  # fmt: skip
_PREPARED = {"model", "workload"}


def seen(process: psutil.Process) -> dict[str, Any]:
    """What this process holds, and what lies about where temporary things are put."""
    gc.collect()
    files = [str(fd.readlink()) for fd in FILES.iterdir() if os.path.lexists(fd)]
    return {
        "files": sorted(files),
        "threads": sorted(thread.name.split("-")[0] for thread in threading.enumerate()),
        "tasks": process.num_threads(),
        "children": [child.cmdline()[-2:] for child in process.children(recursive=True)],
        "temporary": sorted(path.name for path in Path(tempfile.gettempdir()).iterdir()),
        "shared": sorted(path.name for path in SHARED.iterdir()) if SHARED.is_dir() else [],
        "objects": len(gc.get_objects()),
        "uss": process.memory_full_info().uss,
    }


def parts_of(directory: Path) -> dict[str, list[str]]:
    """What each stage of a run said, by the module that it ran."""
    lines = (directory / "events.jsonl").read_text(encoding="utf-8").splitlines()
    parts: dict[str, list[str]] = {"environment": [], "prepare": [], "arms": []}
    for line in lines:
        kind = json.loads(line)["event"]
        if kind == "environment":
            parts["environment"].append(line)
        elif kind in _PREPARED:
            parts["prepare"].append(line)
        elif kind not in _RUNNERS:
            parts["arms"].append(line)
    parts["prepare"].append('{"event":"model_directory","path":"nowhere"}')
    return parts


def replay(directory: Path) -> None:
    """From now on every stage is a process that repeats what that of ``directory`` said."""
    parts = parts_of(directory)
    names = {"experiment.probe": "environment", "experiment.prepare": "prepare"}
    os.environ["PYTHONPATH"] = str(HERE)

    class Replayed(Child):
        def __init__(self, module: str, task: Any, *rest: Any, **more: Any) -> None:
            lines = parts[names.get(module, "arms")]
            super().__init__("replayed_child", {"lines": lines}, *rest, **more)

    runner.Child = Replayed  # type: ignore[misc]


def run_many(runs: int, out: Path, replayed: bool) -> Iterator[dict[str, Any]]:
    """What is there after each run."""
    process = psutil.Process()
    for number in range(runs):
        printed = io.StringIO()
        with redirect_stdout(printed), redirect_stderr(printed):
            code = main([*WORDS, "--out", str(out / str(number))])
        assert code == 0, printed.getvalue()[-2000:]
        if replayed and not number:
            replay(out / "0")
        for path in sorted((out / str(number)).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        yield seen(process)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--replayed", action="store_true")
    asked = parser.parse_args()
    for each in run_many(asked.runs, asked.out, asked.replayed):
        print(json.dumps(each), flush=True)
