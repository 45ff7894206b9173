"""Shared memory that processes of an arm made and cannot give back once they are killed.

Linux keeps it under /dev/shm until someone removes it, for as long as the machine runs. Python's
resource tracker does that for a process that died, unless it is killed with it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

import psutil

_PLACE = "/dev/shm/"  # noqa: S108 - where Linux keeps them; nothing is created here
_TRACKER = "multiprocessing.resource_tracker"


def segments_of(processes: Iterable[psutil.Process]) -> frozenset[Path]:
    """Shared memory that these processes have mapped; none on other systems."""
    found: set[Path] = set()
    for process in processes:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{process.pid}/maps").read_text("utf-8", "replace").split("\n"):
                _, place, name = line.partition(_PLACE)
                if place:
                    found.add(Path(place + name))
    return frozenset(path for path in found if path.exists())


def remove_segments(paths: Iterable[Path]) -> None:
    """Remove those that are still there and that no process has mapped any more."""
    left = {path for path in paths if path.exists()}
    if left:
        left -= segments_of(psutil.process_iter())
    for path in left:
        with contextlib.suppress(OSError):
            path.unlink()


def is_tracker(process: psutil.Process) -> bool:
    """Whether it is the one that gives back what others leave; it ends when they have."""
    try:
        return any(_TRACKER in word for word in process.cmdline())
    except psutil.Error:
        return False
