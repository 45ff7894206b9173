"""Locks that keep two processes from writing the same run or directory.

    events.jsonl    locked by a measuring run, from the first line to the last
    a directory     locked by a command while it writes files into it

The operating system releases a lock when its owner ends; no lock file remains.
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
except ImportError:  # not POSIX: only the log's exclusive creation protects it
    fcntl = None  # type: ignore[assignment]

_LOCKED_ERRNOS = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
_POLL_S = 0.05
_MIN_WAIT_S = 0.25  # a status check holds the shared lock for a moment
RENDER_WAIT_S = 60.0  # rendering a report takes some seconds

# Directories locked by this process, by device and inode: commands may nest.
_locked_here: set[tuple[int, int]] = set()


def lock(file: IO[bytes] | int, wait_s: float = 0.0) -> bool:
    """Lock a file for this process; False if another process keeps it locked for ``wait_s``.

    A file system without locks always grants the lock.
    """
    deadline = time.monotonic() + max(wait_s, _MIN_WAIT_S)
    while not _try_flock(file, shared=False):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True


def is_locked(path: Path) -> bool:
    """Whether another process is writing this file or into this directory now."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # do not block on a pipe
    except OSError:
        return False
    try:
        return _device_and_inode(handle) not in _locked_here and not _try_flock(handle, shared=True)
    finally:
        os.close(handle)


@contextmanager
def directory_lock(directory: Path, wait_s: float = 0.0) -> Iterator[None]:
    """Lock a directory against other commands.

    Args:
        directory: the directory.
        wait_s: seconds to wait for another process.

    Raises:
        UserError: another process holds the lock.
    """
    with try_directory_lock(directory, wait_s) as ours:
        if not ours:
            raise user_error("error.run_in_use", path=str(directory))
        yield


@contextmanager
def try_directory_lock(directory: Path, wait_s: float) -> Iterator[bool]:
    """Try to lock a directory for up to ``wait_s``; yield whether it is locked by us."""
    try:
        handle = os.open(directory, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    except OSError:  # the writer reports what is wrong with it
        yield True
        return
    place = _device_and_inode(handle)
    try:
        if place in _locked_here:
            yield True
        elif lock(handle, wait_s):
            _locked_here.add(place)
            try:
                yield True
            finally:
                _locked_here.discard(place)
        else:
            yield False
    finally:
        os.close(handle)


def _device_and_inode(handle: int) -> tuple[int, int]:
    about = os.fstat(handle)
    return about.st_dev, about.st_ino


def _try_flock(file: IO[bytes] | int, *, shared: bool) -> bool:
    """Whether the lock was granted; status checks share it and do not block each other."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in _LOCKED_ERRNOS
    return True
