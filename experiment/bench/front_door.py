"""What a person waits for at the front door: the help text, and the whole walkthrough."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiment.messages import Message, message
from experiment.offspring import Guard, new_mark
from experiment.shipped import DOOR

HELP_RUNS = 5
WALKTHROUGH_RUNS = 3
_LIMIT_S = 900.0


def front_door(directory: Path, walkthrough: bool) -> dict[str, Any]:
    """Seconds of each call of ``--help`` and, if asked for, of each default walkthrough, offline.

    Processes as a person starts them, from start to end; a reason where they could not be timed.
    """
    if not DOOR.exists():
        return {"reason": message("bench.no_door").model_dump(mode="json")}
    commands = {"help_s": [["--help"]] * HELP_RUNS}
    if walkthrough:
        whole = ["--yes", "--quiet", "--offline", "--out"]
        names = (f"walkthrough-{number}" for number in range(WALKTHROUGH_RUNS))
        commands["walkthrough_s"] = [[*whole, str(directory / name)] for name in names]
    mark = new_mark()
    try:
        guard = Guard(mark)  # should we be killed, a walkthrough takes minutes that nobody wants
    except OSError:
        return {"reason": message("bench.door_failed", code=None).model_dump(mode="json")}
    try:
        return _all_timed(commands, mark)
    finally:
        guard.let_go()


def _all_timed(commands: Mapping[str, Sequence[Sequence[str]]], mark: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, runs in commands.items():
        found[name] = []
        for words in runs:
            seconds, problem = _timed(words, mark)
            if problem is not None:
                return found | {name: [], "reason": problem.model_dump(mode="json")}
            found[name].append(seconds)
    return found


def _timed(words: Sequence[str], mark: str) -> tuple[float, Message | None]:
    begin = time.perf_counter()
    try:
        done = subprocess.run(  # noqa: S603 - our own front door
            [sys.executable, str(DOOR), *words],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            timeout=_LIMIT_S, check=False, env={**os.environ, mark: "1"},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return _LIMIT_S, message("bench.door_failed", code=None)
    code = done.returncode
    seconds = time.perf_counter() - begin
    return seconds, message("bench.door_failed", code=code) if code else None
