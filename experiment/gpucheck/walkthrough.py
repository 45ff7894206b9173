"""The walkthrough with every arm that is there, by the real program in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
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
# Compiled where there is a GPU alone.
_ON_GPU = "contiguous.compiled"
_DIRECTORY = "walkthrough"
# Seconds before the deadline at which it is interrupted, so that it writes down what it has.
_SPARE_S = 20.0


def check(wire: Wire, task: Task) -> None:
    """Run it, then judge each arm by the record."""
    directory = task.directory / _DIRECTORY
    arms = [*_ARMS, *([_ON_GPU] if task.on_gpu else [])]
    variables = {}
    python = find_vllm()
    if isinstance(python, Message):
        report(wire, "vllm", None, "gpucheck.walkthrough.no_vllm", reason=python.model_dump())
    else:
        arms.append("vllm")
        variables[VLLM_PYTHON] = python
    words = [] if task.on_gpu else ["--config", "configs/quick.toml"]
    words += ["--yes", "--lang", "en", "--arms", ",".join(arms), "--out", str(directory)]
    program = subprocess.Popen(  # noqa: S603 - our own program, no shell
        [sys.executable, "-P", "-m", "experiment", *words],
        stdin=subprocess.DEVNULL, stdout=sys.stderr, stderr=sys.stderr,
        env=child_environment(variables),
    )  # fmt: skip
    limit_s = max(0.0, task.deadline - _SPARE_S - time.monotonic())
    try:
        code = program.wait(limit_s)
        report(wire, "exit", code == 0, "gpucheck.walkthrough.exit", code=code)
    except subprocess.TimeoutExpired:
        program.send_signal(signal.SIGINT)
        program.wait()
        report(wire, "exit", False, "gpucheck.walkthrough.interrupted", limit=limit_s)
    for each in arm_checks(directory / RUN_FILE):
        wire.emit(each)


def arm_checks(path: Path) -> list[Check]:
    """A check for each arm of a ``run.json``; one that says that there is none."""
    try:
        arms = parse_json(read_bounded(path, MAX_JSON_BYTES))["results"]["arms"]
    except (UserError, ValueError, LookupError, TypeError):
        text = message("gpucheck.walkthrough.no_record")
        return [Check(check="record", passed=False, text=text)]
    return [_arm_check(arm) for arm in arms]


def _arm_check(arm: dict[str, Any]) -> Check:
    """Whether an arm finished and its log contradicts nothing; a skipped one is not judged."""
    named = {"arm": arm_message(arm["arm"]).model_dump()}
    problem = arm["reason"] or next(iter(arm["problems"]), None)
    if problem is None and arm["status"] == "finished":
        text = message("gpucheck.walkthrough.finished", **named)
        return Check(check=f"arm.{arm['arm']}", passed=True, text=text)
    text = message("gpucheck.walkthrough.problem", reason=problem, **named)
    passed = None if arm["status"] == "skipped" else False
    return Check(check=f"arm.{arm['arm']}", passed=passed, text=text)
