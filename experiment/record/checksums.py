"""Checksums in ``run.json`` over the files beside it: who changed one later is told so.

    run.json   "files": {"events.jsonl": sha256, "logs/paged.log": sha256, "report.html": sha256 …}

They tell a slip, a bad copy or a failing disk, not a forger, who could change ``run.json`` as well.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from experiment.files.bounded_reading import check_inside
from experiment.files.bounds import MAX_FILE_NAME, MAX_FILES
from kvsim.files import file_sha256, stream_sha256

LOGS = "logs"
# Of all files of a run together, in some seconds.
MAX_READ = 1 << 30
# No link is followed, and no pipe is waited for. Windows knows neither flag.
_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


def is_measured(name: str) -> bool:
    """Whether a file was written while the run measured; the others are drawn from those."""
    return name == "events.jsonl" or name.startswith(f"{LOGS}/")


def measured_files(directory: Path) -> list[Path]:
    """The event log and what the processes printed, as far as ``MAX_READ`` bytes reach.

    Nothing that a link leads to.
    """
    logs = directory / LOGS
    found = () if logs.is_symlink() else sorted(logs.rglob("*"))
    kept, left = [], MAX_READ
    for path in (directory / "events.jsonl", *found):
        if path.is_symlink() or not path.is_file():
            continue
        size = path.stat().st_size
        if size <= left:
            kept.append(path)
            left -= size
    return kept


def checksums(directory: Path, files: Iterable[Path]) -> dict[str, str]:
    """Sha256 of files in a directory, by their names within it.

    Raises:
        OSError: one cannot be read.
    """
    return {path.relative_to(directory).as_posix(): file_sha256(path) for path in files}


def changed_files(directory: Path, known: Any) -> tuple[str, ...]:
    """Names of files that are there and are not what ``known`` says; none if it says nothing.

    A report that was deleted is no contradiction: it can be drawn again. No more than ``MAX_READ``
    bytes are read, of regular files alone: what is beyond them no run wrote.
    """
    if not isinstance(known, Mapping):
        return ()
    if len(known) > MAX_FILES or any(len(str(name)) > MAX_FILE_NAME for name in known):
        return ("run.json",)
    budget = _Budget()
    changed = (
        str(name) for name, digest in known.items() if budget.is_changed(directory, name, digest)
    )
    return tuple(changed)


class _Budget:
    """Reads files of a run, at most ``MAX_READ`` bytes in all."""

    def __init__(self) -> None:
        self._left = MAX_READ

    def is_changed(self, directory: Path, name: str, digest: Any) -> bool:
        """Whether a file is there that is not what ``digest`` says, or a measured one is not."""
        try:
            path = check_inside(directory, directory / name, opened=True)
            return bool(self._sha256(path) != digest)
        except FileNotFoundError:
            return is_measured(name)
        except (OSError, ValueError):  # no regular file, too large, or a name that no file can have
            return True

    def _sha256(self, path: Path) -> str:
        descriptor = os.open(path, _FLAGS)
        with os.fdopen(descriptor, "rb") as file:
            about = os.fstat(descriptor)
            if not stat.S_ISREG(about.st_mode) or about.st_size > self._left:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
            return stream_sha256(file, self._take)

    def _take(self, count: int) -> None:
        self._left -= count
        if self._left < 0:  # it has grown, or its size is none
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
