"""Shared memory of killed processes.

Linux keeps it under /dev/shm until it is removed. Python's resource tracker removes it for a
process that died, unless the tracker is killed too.

Users also keep files there. Files in directories, and files older than our first process, are never
removed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

import psutil

_PLACE = "/dev/shm/"  # noqa: S108 - where Linux keeps them; nothing is created here
_TRACKER = "multiprocessing.resource_tracker"
_DELETED = " (deleted)"
# Intel's and LLVM's OpenMP register the loading process under this name, without a mapping.
_OPENMP = "__KMP_REGISTERED_LIB_{pid}_{user}"
_existing: set[str] = set()
_recorded: list[bool] = []


def remember_existing(names: Iterable[str] | None = None) -> None:
    """Record the files that exist before the program starts its first process.

    Args:
        names: files that another process found.
    """
    if names is not None:
        _existing.update(names)
    elif not _recorded:
        with contextlib.suppress(OSError):
            _existing.update(path.name for path in Path(_PLACE).iterdir())
    _recorded.append(True)


def segments_of(processes: Iterable[psutil.Process]) -> frozenset[Path]:
    """Shared memory created by these processes; empty on other systems."""
    return frozenset(path for path in _segments(processes) if path.name not in _existing)


def _segments(processes: Iterable[psutil.Process]) -> set[Path]:
    """Shared memory that the processes have mapped, or that is named after them."""
    found: set[Path] = set()
    for process in processes:
        if hasattr(os, "getuid"):
            found.add(Path(_PLACE + _OPENMP.format(pid=process.pid, user=os.getuid())))
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{process.pid}/maps").read_text("utf-8", "replace").split("\n"):
                _, place, name = line.partition(_PLACE)
                if place and "/" not in name and not name.endswith(_DELETED):
                    found.add(Path(place + name))
    return {path for path in found if path.exists()}


def remove_segments(paths: Iterable[Path]) -> None:
    """Remove segments that still exist and that no process has mapped."""
    left = {path for path in paths if path.exists()}
    if left:
        left -= _segments(filter(_is_alive, psutil.process_iter()))
    for path in left:
        with contextlib.suppress(OSError):
            path.unlink()


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def is_tracker(process: psutil.Process) -> bool:
    """Whether the process is Python's resource tracker, which ends after its clients."""
    try:
        return any(_TRACKER in word for word in process.cmdline())
    except psutil.Error:
        return False
