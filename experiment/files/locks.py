"""Keeps two processes from writing the same run, or into the same directory.

    events.jsonl    a run that measures has its log, from the first line to the last
    a directory     a command that writes files into it has it for as long as it takes

The system lets go when the holder ends, however it ends; no file of ours is left to be removed.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from experiment.text.errors import user_error

try:
    import fcntl
except ImportError:  # not a POSIX system: that a log is never opened twice has to do there
    fcntl = None  # type: ignore[assignment]

_HELD = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
_POLL_S = 0.05
_GLANCE_S = 0.25  # whoever only looks has a file for a moment, too, and is no holder
DRAWING_S = 60.0  # whoever draws a report has a directory for some seconds

# Directories of this process, by device and number: a command may run another one within itself.
_ours: set[tuple[int, int]] = set()


def lock(file: IO[bytes] | int, wait_s: float = 0.0) -> bool:
    """Take a file for this process; False where another one has it, and has it still later.

    On a file system that knows no locks nobody is kept out.
    """
    deadline = time.monotonic() + max(wait_s, _GLANCE_S)
    while not _taken(file, shared=False):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True


def is_locked(path: Path) -> bool:
    """Whether another process is writing this file, or into this directory, at the moment."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # of a pipe, too
    except OSError:
        return False
    try:
        return _place(handle) not in _ours and not _taken(handle, shared=True)
    finally:
        os.close(handle)


@contextmanager
def held(directory: Path, wait_s: float = 0.0) -> Iterator[None]:
    """Keep other commands from writing into a directory while this lasts.

    Args:
        directory: where it is.
        wait_s: how long another process may still have it.

    Raises:
        UserError: another process has it.
    """
    with turn(directory, wait_s) as ours:
        if not ours:
            raise user_error("error.run_in_use", path=str(directory))
        yield


@contextmanager
def turn(directory: Path, wait_s: float) -> Iterator[bool]:
    """Have a directory, where another process lets go of it in time; whether it is ours."""
    try:
        handle = os.open(directory, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    except OSError:  # whoever writes there will say what is wrong with it
        yield True
        return
    place = _place(handle)
    try:
        if place in _ours:
            yield True
        elif lock(handle, wait_s):
            _ours.add(place)
            try:
                yield True
            finally:
                _ours.discard(place)
        else:
            yield False
    finally:
        os.close(handle)


def hold(directory: Path) -> int | None:
    """Have a directory of one's own until the handle is closed, or this process ends in any way.

    None where the system opens no directories.

    Raises:
        FileNotFoundError: :func:`abandoned` has found it before it was held.
    """
    try:
        handle = os.open(directory, os.O_RDONLY)
    except PermissionError:
        return None
    if lock(handle) and directory.exists():
        return handle
    os.close(handle)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(directory))


@contextmanager
def abandoned(directory: Path) -> Iterator[bool]:
    """Whether who held a directory is gone; then it is ours while this lasts.

    Where nobody can say, it is not.
    """
    if fcntl is None:
        yield False
        return
    try:
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        yield False
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # it is held, or this file system knows no locks
            yield False
        else:
            yield True
    finally:
        os.close(handle)


def _place(handle: int) -> tuple[int, int]:
    about = os.fstat(handle)
    return about.st_dev, about.st_ino


def _taken(file: IO[bytes] | int, *, shared: bool) -> bool:
    """Whether nobody else has it; those who share it, as all do who look, are in nobody's way."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in _HELD
    return True
