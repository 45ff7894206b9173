"""Checksums in ``run.json`` over the files beside it: who changed one later is told so.

    run.json   "files": {"events.jsonl": sha256, "logs/paged.log": sha256, "report.html": sha256 …}

They tell a slip, a bad copy or a failing disk, not a forger, who could change ``run.json`` as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from kvsim.digest import file_sha256

LOGS = "logs"
MAX_READ = 8 << 30


def is_measured(name: str) -> bool:
    """Whether a file was written while the run measured; the others are drawn from those."""
    return name == "events.jsonl" or name.startswith(f"{LOGS}/")


def measured_files(directory: Path) -> list[Path]:
    """The event log and what the processes printed; nothing that a link leads to."""
    logs = directory / LOGS
    found = () if logs.is_symlink() else logs.rglob("*")
    kept = sorted(path for path in found if path.is_file() and not path.is_symlink())
    return [directory / "events.jsonl", *kept]


def checksums(directory: Path, files: Iterable[Path]) -> dict[str, str]:
    """Sha256 of files in a directory, by their names within it.

    Raises:
        OSError: one cannot be read.
    """
    return {path.relative_to(directory).as_posix(): file_sha256(path) for path in files}


def changed_files(directory: Path, known: Any) -> tuple[str, ...]:
    """Names of files that are there and are not what ``known`` says; none if it says nothing.

    A report that was deleted is no contradiction: it can be drawn again. No more than ``MAX_READ``
    bytes are read: what comes behind them no run wrote, however often a file is named.
    """
    if not isinstance(known, Mapping):
        return ()
    found, left = [], MAX_READ
    for name, digest in known.items():
        left -= _size(directory, str(name))
        if left < 0 or _is_changed(directory, str(name), digest):
            found.append(str(name))
    return tuple(found)


def _size(directory: Path, name: str) -> int:
    try:
        return (directory / name).stat().st_size
    except (OSError, ValueError):
        return 0


def _is_changed(directory: Path, name: str, digest: Any) -> bool:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        return True  # no run wrote such a name, and nothing out there is read for it
    place = directory / path
    try:
        if place.exists() and not place.is_file():
            return True  # a pipe in its place would be waited for without end
        return bool(file_sha256(place) != digest)
    except FileNotFoundError:
        return is_measured(name)
    except (OSError, ValueError):  # a name that no file can have
        return True
