"""Checksums in ``run.json`` of the other files of a run.

    run.json   "files": {"events.jsonl": sha256, "logs/paged.log": sha256, "report.html": sha256 …}

They detect mistakes, incomplete copies and failing disks, not deliberate changes.
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
from kvsim.base.files import file_sha256, stream_sha256

LOGS = "logs"
# Of all files of a run together; takes some seconds.
MAX_READ = 1 << 30
# Do not follow links or block on pipes. Windows has neither flag.
_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


def is_measured(name: str) -> bool:
    """Whether a file was written during measurement; the others are rendered from those."""
    return name == "events.jsonl" or name.startswith(f"{LOGS}/")


def measured_files(directory: Path) -> list[Path]:
    """The event log and the process logs, up to ``MAX_READ`` bytes; links are skipped."""
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
    """SHA-256 of files in a directory, by relative path.

    Raises:
        OSError: a file cannot be read.
    """
    return {path.relative_to(directory).as_posix(): file_sha256(path) for path in files}


def changed_files(directory: Path, known: Any) -> tuple[str, ...]:
    """Names of existing files whose checksum differs from ``known``; empty without checksums.

    A deleted report is no change, as it can be rendered again. At most ``MAX_READ`` bytes of
    regular files are read; a run writes no more.
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
    """Read files of a run, at most ``MAX_READ`` bytes in all."""

    def __init__(self) -> None:
        self._left = MAX_READ

    def is_changed(self, directory: Path, name: str, digest: Any) -> bool:
        """Whether a file differs from its checksum, or is missing although it was measured."""
        try:
            path = check_inside(directory, directory / name, opened=True)
            return bool(self._sha256(path) != digest)
        except FileNotFoundError:
            return is_measured(name)
        except (OSError, ValueError):  # not a regular file, too large, or an invalid name
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
        if self._left < 0:  # it has grown, or reports no size
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
