"""Cells on disk; an existing file is complete.

OUT/cells/<id>.json    the result, identical on every machine
OUT/timing/<id>.json   how long it took
OUT/sweep.json         the cells of the latest grid, in order
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Sequence
from pathlib import Path

from kvsim.base.files import write_whole
from kvsim.sweep.cell import ComputedCell
from kvsim.sweep.grid import FORMAT, SweepCell, canonical

_MAX_BYTES = 1 << 24


class CellStore:
    """A directory of cells, reusable by several sweeps.

    Raises:
        OSError: it cannot be created.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._cells, self._timing = directory / "cells", directory / "timing"
        for each in (self._cells, self._timing):
            if each.is_symlink():  # do not write outside the directory
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(each))
            each.mkdir(parents=True, exist_ok=True)

    def begin(self, cells: Sequence[SweepCell]) -> list[SweepCell]:
        """Write the list of cells; return those that are missing."""
        listed = [{"id": cell.id, "settings": cell.key["settings"]} for cell in cells]
        write_whole(self.directory / "sweep.json", canonical({"format": FORMAT, "cells": listed}))
        return [cell for cell in cells if not self.has(cell)]

    def has(self, cell: SweepCell) -> bool:
        """Whether a cell is finished: its file exists and has its id."""
        try:
            found = json.loads(_content(self._path(cell.id)))
        except (OSError, ValueError, RecursionError):
            return False
        return isinstance(found, dict) and found.get("id") == cell.id

    def put(self, done: ComputedCell) -> None:
        """Write a computed cell and its timing."""
        timing = canonical({"seconds": done.seconds, "by": done.by})
        write_whole(self._timing / f"{done.id}.json", timing)
        write_whole(self._path(done.id), done.content)

    def read(self, cell: SweepCell) -> bytes:
        """Return the bytes of a finished cell."""
        return _content(self._path(cell.id))

    def _path(self, cell_id: str) -> Path:
        return self._cells / f"{cell_id}.json"


def _content(path: Path) -> bytes:
    """Read a regular file (a pipe would block).

    Raises:
        OSError: not a regular file, or larger than any cell.
    """
    if not path.is_file() or path.stat().st_size > _MAX_BYTES:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), str(path))
    return path.read_bytes()
