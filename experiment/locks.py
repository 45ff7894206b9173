"""Keeps two processes from writing the same run. The system lets go when the holder ends."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # not a POSIX system: that a log is never opened twice has to do there
    fcntl = None  # type: ignore[assignment]

_HELD = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


def lock(file: IO[bytes]) -> bool:
    """Take a file for this process; False where another one has it.

    On a file system that knows no locks nobody is kept out.
    """
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in _HELD
    return True


def is_locked(path: Path) -> bool:
    """Whether a process is writing this file at the moment."""
    try:
        with path.open("rb") as file:
            return not lock(file)
    except OSError:
        return False
