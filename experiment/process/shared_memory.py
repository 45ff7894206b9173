"""Shared memory that processes of an arm made and cannot give back once they are killed.

Linux keeps it under /dev/shm until someone removes it, for as long as the machine runs. Python's
resource tracker does that for a process that died, unless it is killed with it.

People keep files there as well: models, caches, temporary things. What lies in a directory, and
what was there before any process of ours, is theirs and stays.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

import psutil

_PLACE = "/dev/shm/"  # noqa: S108 - where Linux keeps them; nothing is created here
_TRACKER = "multiprocessing.resource_tracker"
_GONE = " (deleted)"
# Intel's and LLVM's OpenMP note here which process has loaded them; they keep no mapping of it.
_OPENMP = "__KMP_REGISTERED_LIB_{pid}_{user}"
_others: set[str] = set()
_looked: list[bool] = []


def remember_others(names: Iterable[str] | None = None) -> None:
    """What is there when a program starts its first process is not its own.

    Args:
        names: of what was there then, where another process looked.
    """
    if names is not None:
        _others.update(names)
    elif not _looked:
        with contextlib.suppress(OSError):
            _others.update(path.name for path in Path(_PLACE).iterdir())
    _looked.append(True)


def segments_of(processes: Iterable[psutil.Process]) -> frozenset[Path]:
    """Shared memory that these processes have and others did not; none on other systems."""
    return frozenset(path for path in _had(processes) if path.name not in _others)


def _had(processes: Iterable[psutil.Process]) -> set[Path]:
    """What processes have mapped, and what is named after them."""
    found: set[Path] = set()
    for process in processes:
        if hasattr(os, "getuid"):
            found.add(Path(_PLACE + _OPENMP.format(pid=process.pid, user=os.getuid())))
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{process.pid}/maps").read_text("utf-8", "replace").split("\n"):
                _, place, name = line.partition(_PLACE)
                if place and "/" not in name and not name.endswith(_GONE):
                    found.add(Path(place + name))
    return {path for path in found if path.exists()}


def remove_segments(paths: Iterable[Path]) -> None:
    """Remove those that are still there and that no process has any more."""
    left = {path for path in paths if path.exists()}
    if left:
        left -= _had(filter(_has_not_ended, psutil.process_iter()))
    for path in left:
        with contextlib.suppress(OSError):
            path.unlink()


def _has_not_ended(process: psutil.Process) -> bool:
    """Whether it holds anything; who was not waited for yet is there by name alone."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def is_tracker(process: psutil.Process) -> bool:
    """Whether it is the one that gives back what others leave; it ends when they have."""
    try:
        return any(_TRACKER in word for word in process.cmdline())
    except psutil.Error:
        return False
