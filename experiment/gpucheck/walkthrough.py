"""Run the walkthrough with every available arm, by the real program in a separate process."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from experiment.arms.launch import VLLM_PYTHON, find_vllm
from experiment.events import Check
from experiment.files.bounded_reading import MAX_JSON_BYTES, parse_json, read_bounded
from experiment.gpucheck.parts import Task, report
from experiment.process.environment import child_environment
from experiment.process.wire import Wire
from experiment.record.log import RUN_FILE
from experiment.text.errors import UserError
from experiment.text.messages import Message, arm_message, message

_ARMS = ("contiguous", "slabs", "paged", "transformers_paged")
# Runs only on a GPU.
_ON_GPU = "contiguous.compiled"
_DIRECTORY = "walkthrough"
# Seconds before the deadline at which it is ended, to leave time for writing its results.
_SPARE_S = 20.0
# Arms with our pool; allocations of other engines in addition to their caches are not checked.
_OURS = ("slabs", "paged")


def check(wire: Wire, task: Task) -> None:
    """Run it, then check each arm in the record."""
    directory = task.directory / _DIRECTORY
    arms = [*_ARMS, *([_ON_GPU] if task.on_gpu else [])]
    variables = {}
    python = find_vllm("cuda" if task.on_gpu else "cpu")
    if isinstance(python, Message):
        report(wire, "vllm", None, "gpucheck.walkthrough.no_vllm", reason=python.model_dump())
    else:
        arms.append("vllm")
        variables[VLLM_PYTHON] = python
    words = ["--device", "cuda"] if task.on_gpu else ["--config", "configs/quick.toml"]
    words += ["--yes", "--lang", "en", "--arms", ",".join(arms), "--out", str(directory)]
    program = subprocess.Popen(  # noqa: S603 - our own program, no shell
        [sys.executable, "-P", "-m", "experiment", *words],
        stdin=subprocess.DEVNULL, stdout=sys.stderr, stderr=sys.stderr,
        env=child_environment(variables),
    )  # fmt: skip
    left_s = task.deadline - time.monotonic()
    limit_s = max(0.0, left_s - min(_SPARE_S, left_s / 4))
    try:
        code = program.wait(limit_s)
        report(wire, "exit", code == 0, "gpucheck.walkthrough.exit", code=code)
    except subprocess.TimeoutExpired:
        program.terminate()  # Ctrl-C is ignored below a script's job in the background
        with suppress(subprocess.TimeoutExpired):
            program.wait(max(0.0, task.deadline - time.monotonic()))
        report(wire, "exit", False, "gpucheck.walkthrough.interrupted", limit=limit_s)
    for each in arm_checks(directory / RUN_FILE):
        wire.emit(each)


def arm_checks(path: Path) -> list[Check]:
    """A check per arm of a ``run.json``, or one failed check if there are none."""
    try:
        run = parse_json(read_bounded(path, MAX_JSON_BYTES))
        arms, exact = run["results"]["arms"], run["config"]["model"]["dtype"] == "float32"
        checks = [_arm_check(arm) for arm in arms]
        checks += [each for arm in arms for each in _pool_checks(arm)]
        return checks + [_tokens_check(each, exact) for each in run["results"]["tokens"]]
    except (UserError, ValueError, LookupError, TypeError):
        text = message("gpucheck.walkthrough.no_record")
        return [Check(check="record", passed=False, text=text)]


def _pool_checks(arm: dict[str, Any]) -> Iterator[Check]:
    """Whether all applicable channels measured the cache of an arm."""
    seen = arm["reconciliation"]
    if seen is not None and seen["text"] is not None:
        text = message("gpucheck.walkthrough.pool", text=seen["text"],
                       arm=arm_message(arm["arm"]).model_dump())  # fmt: skip
        passed = seen["agree"] if arm["arm"] in _OURS else None
        yield Check(check=f"pool.{arm['arm']}", passed=passed, text=text)


def _tokens_check(row: dict[str, Any], exact: bool) -> Check:
    """Whether an arm's tokens equal the first arm's; in half precision near ties may differ."""
    text = message(
        "gpucheck.walkthrough.tokens", n=row["equal_requests"], of=row["requests"],
        arm=arm_message(row["arm"]).model_dump(),
    )  # fmt: skip
    known = exact and row["reason"] is None
    passed = row["equal_requests"] == row["requests"] if known else None
    return Check(check=f"tokens.{row['arm']}", passed=passed, text=text)


def _arm_check(arm: dict[str, Any]) -> Check:
    """Whether an arm finished without contradictions; inconclusive if skipped."""
    problem = arm["reason"] or next(iter(arm["problems"]), None)
    sound = problem is None and arm["status"] == "finished"
    key = "gpucheck.walkthrough.finished" if sound else "gpucheck.walkthrough.problem"
    text = message(key, reason=problem, arm=arm_message(arm["arm"]).model_dump())
    passed = None if arm["status"] == "skipped" else sound
    return Check(check=f"arm.{arm['arm']}", passed=passed, text=text)
