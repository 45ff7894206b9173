"""What a person waits for at the front door: the help text, and the whole walkthrough."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiment.files.shipped import DOOR
from experiment.process.environment import child_environment
from experiment.process.process_tree import OrphanReaper, new_mark
from experiment.text.messages import Message, message

HELP_RUNS = 5
WALKTHROUGH_RUNS = 3
_LIMIT_S = 900.0
# So long a reader of a terminal may not have noticed that the program has ended.
_LOOK_S = 0.2
# What a terminal is called that draws everything; whoever has one has named it.
_TERM = "xterm-256color"


def front_door(directory: Path, walkthrough: bool) -> dict[str, Any]:
    """Seconds of each call of ``--help`` and, if asked for, of each default walkthrough, offline.

    Processes as a person starts them, from start to end; a reason where they could not be timed.
    They print to a terminal, if the system has any, with all that they draw there.
    """
    if not DOOR.exists():
        return {"reason": message("bench.no_door").model_dump(mode="json")}
    commands = {"help_s": [["--help"]] * HELP_RUNS}
    if walkthrough:
        whole = ["--yes", "--offline", "--out"]
        names = (f"walkthrough-{number}" for number in range(WALKTHROUGH_RUNS))
        commands["walkthrough_s"] = [[*whole, str(directory / name)] for name in names]
    mark = new_mark()
    try:
        guard = OrphanReaper(
            mark
        )  # should we be killed, a walkthrough takes minutes that nobody wants
    except OSError:
        return {"reason": message("bench.door_failed", code=None).model_dump(mode="json")}
    try:
        return _all_timed(commands, mark)
    finally:
        guard.release()


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
    with _screen() as (screen, variables):
        begin = time.perf_counter()
        try:
            done = subprocess.run(  # noqa: S603 - our own front door
                [sys.executable, str(DOOR), *words],
                stdin=subprocess.DEVNULL, stdout=screen, stderr=screen,
                timeout=_LIMIT_S, check=False, env=child_environment({**variables, mark: "1"}),
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            return _LIMIT_S, message("bench.door_failed", code=None)
        seconds = time.perf_counter() - begin
    code = done.returncode
    return seconds, message("bench.door_failed", code=code) if code else None


@contextlib.contextmanager
def _screen() -> Iterator[tuple[int, dict[str, str]]]:
    """Where a program prints, and the variables that say how: a terminal that somebody reads.

    A system without any, or with none left, has nothing that a person would see.
    """
    try:
        ours, theirs = os.openpty()
    except (AttributeError, OSError):
        yield subprocess.DEVNULL, {}
        return
    over = threading.Event()
    reader = threading.Thread(target=_read, args=(ours, over), daemon=True)
    reader.start()
    columns, lines = shutil.get_terminal_size()
    size = {"COLUMNS": str(columns), "LINES": str(lines)}
    try:
        yield theirs, {"TERM": os.environ.get("TERM") or _TERM, **size}
    finally:
        over.set()
        reader.join()
        for end in (ours, theirs):
            os.close(end)


def _read(terminal: int, over: threading.Event) -> None:
    """Take what is printed, so that nobody waits for room; whoever still holds the terminal may."""
    with contextlib.suppress(OSError, ValueError):
        while not over.is_set():
            if select.select([terminal], [], [], _LOOK_S)[0]:
                os.read(terminal, 1 << 16)
