"""What a person waits for at the front door: the help text, and the whole walkthrough."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiment.messages import Message, message
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
    found: dict[str, Any] = {}
    for name, runs in commands.items():
        found[name] = []
        for words in runs:
            seconds, problem = _timed(words)
            if problem is not None:
                return found | {name: [], "reason": problem.model_dump(mode="json")}
            found[name].append(seconds)
    return found


def _timed(words: Sequence[str]) -> tuple[float, Message | None]:
    begin = time.perf_counter()
    try:
        done = subprocess.run(  # noqa: S603 - our own front door
            [sys.executable, str(DOOR), *words],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            timeout=_LIMIT_S, check=False, env=dict(os.environ),
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return _LIMIT_S, message("bench.door_failed", code=None)
    code = done.returncode
    seconds = time.perf_counter() - begin
    return seconds, message("bench.door_failed", code=code) if code else None
