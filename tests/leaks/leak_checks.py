"""Starts :mod:`many_runs` in a process of its own and judges what it saw."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from steady import growth

HERE = Path(__file__).resolve().parent
# Imports, caches of fonts and templates, and the first pages of allocators.
WARM_UP = 4
_PAGES, _ARENA = 1 << 20, 64 << 20
_OBJECTS = 20  # a run; its record alone has thousands


def look(
    runs: int, place: Path, replayed: str, timeout_s: float, whole_every: int = 0
) -> list[dict[str, Any]]:
    """What a process held after each of its runs; its temporary directory is its own.

    ``replayed`` and ``whole_every`` are those of :mod:`many_runs`.
    """
    temporary = Path(tempfile.mkdtemp(prefix="tmp-"))  # a socket's path has room in it
    words = ["--runs", str(runs), "--out", str(place / "out"), "--replayed", replayed,
             "--whole-every", str(whole_every)]  # fmt: skip
    try:
        done = subprocess.run(
            [sys.executable, str(HERE / "many_runs.py"), *words],
            env={**os.environ, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"},
            capture_output=True, timeout=timeout_s, check=False, encoding="utf-8",
        )  # fmt: skip
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == runs
    return found


def leaks(found: list[dict[str, Any]]) -> dict[str, Any]:
    """What the last run left that was not there after the warm-up; empty where there is none."""
    first, last = found[WARM_UP - 1], found[-1]
    names = ("files", "threads", "tasks", "children", "temporary")
    left = {name: (first[name], last[name]) for name in names if first[name] != last[name]}
    left |= {"children": last["children"]} if last["children"] else {}
    # Other programs share memory, too: what they take they mostly give back soon.
    lasting = set.intersection(*(set(each["shared"]) for each in found[-3:]))
    if shared := lasting - set(first["shared"]):
        left["shared"] = sorted(shared)
    half = found[max(WARM_UP, len(found) // 2) :]
    gained, noise = growth([each["uss"] for each in half])
    # An arena more is no leak; of a few runs one cannot tell, but objects are counted exactly.
    if gained > 4 * noise + max(_PAGES, _ARENA // len(half)):
        left["uss"] = (gained, noise)
    if half[-1]["objects"] - half[0]["objects"] > _OBJECTS * len(half):
        left["objects"] = (half[0]["objects"], half[-1]["objects"])
    return left
