"""Many quick runs in one process, and what is left of each: prints a line of JSON for each.

python many_runs.py --runs 200 --out DIR               every stage of every run is the real one
    --replayed all                          from the second run on every stage is a process that
                                            repeats what that of the first run said
    --replayed preparation --whole-every 10   the arms are real ones, and every tenth run is whole
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
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import psutil  # noqa: E402

from experiment.commands.main import main  # noqa: E402
from experiment.config.schema import Config  # noqa: E402
from experiment.model.builtin import model_directory  # noqa: E402
from experiment.process.child import Child  # noqa: E402
from experiment.runner import session as runner  # noqa: E402

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


def parts_of(directory: Path, model: str) -> dict[str, list[str]]:
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
    parts["prepare"].append(json.dumps({"event": "model_directory", "path": model}))
    return parts


def replaying(directory: Path, arms: bool) -> type[Child]:
    """A child that repeats what that of ``directory`` said: in the preparation, or in ``arms``."""
    told = Config()
    model = model_directory("tiny-gpt2", told.run.seed, told.model.init_range)
    parts = parts_of(directory, str(model))
    names = {"experiment.children.probe": "environment", "experiment.children.prepare": "prepare"}
    os.environ["PYTHONPATH"] = str(HERE)

    class Replayed(Child):
        def __init__(self, module: str, task: Any, *rest: Any, **more: Any) -> None:
            name = names.get(module, "arms" if arms else None)
            if name is not None:
                module, task = "replayed_child", {"lines": parts[name]}
            super().__init__(module, task, *rest, **more)

        def begin(self, task: Any, timeout_s: float) -> None:
            """Of a process that was started ahead: what it repeats was told when it was made."""
            if self._module == "replayed_child" and "_deadline" in vars(self):
                self._deadline = time.monotonic() + timeout_s
            else:
                super().begin(task, timeout_s)

    return Replayed


def run_many(runs: int, out: Path, replayed: str, whole_every: int) -> Iterator[dict[str, Any]]:
    """What is there after each run."""
    process, again = psutil.Process(), Child
    for number in range(runs):
        whole = number == 0 or (whole_every and number % whole_every == 0)
        runner.Child = Child if whole else again  # type: ignore[misc]
        printed = io.StringIO()
        with redirect_stdout(printed), redirect_stderr(printed):
            code = main([*WORDS, "--out", str(out / str(number))])
        assert code == 0, printed.getvalue()[-2000:]
        if replayed != "nothing" and not number:
            again = replaying(out / "0", arms=replayed == "all")
        for path in sorted((out / str(number)).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        yield seen(process)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    kinds = ("nothing", "preparation", "all")
    parser.add_argument("--replayed", choices=kinds, default="nothing")
    parser.add_argument("--whole-every", type=int, default=0)
    asked = parser.parse_args()
    for each in run_many(asked.runs, asked.out, asked.replayed, asked.whole_every):
        print(json.dumps(each), flush=True)
