"""Raw bytes of a trace file: hashed as stored, decompressed if gzipped."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from kvsim.traces.types import TraceError

_CHUNK = 1 << 16
_GZIP = b"\x1f\x8b"


class Hashed(io.RawIOBase):
    """Bytes of a file, counted and hashed while they are read.

    Reads at most the size at opening: some files of ``/proc`` are endless.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.size = os.fstat(file.fileno()).st_size
        self._digest = hashlib.sha256()
        self.passed = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer from the file; return the number of bytes."""
        data = self._next(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _next(self, most: int) -> bytes:
        data = self._file.read(min(most, self.size - self.passed))
        self._digest.update(data)
        self.passed += len(data)
        return data

    def drain(self) -> str:
        """Read the rest and return the sha256 of the whole file."""
        while self._next(_CHUNK):
            pass
        return self._digest.hexdigest()


@contextmanager
def open_trace(path: Path) -> Iterator[tuple[Hashed, io.BufferedReader[Any]]]:
    """Open a file for hashing, and decompress it if it is gzipped.

    Raises:
        TraceError: ``unreadable``: not a regular file, not readable, or damaged gzip.
    """
    try:
        kind = path.stat().st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):  # a pipe would block, or be endless
            raise OSError(errno.ESPIPE, os.strerror(errno.ESPIPE), str(path))
        with path.open("rb") as file:
            hashed = Hashed(file)
            buffered = io.BufferedReader(hashed, _CHUNK)
            if buffered.peek(2)[:2] == _GZIP:
                unpacked: Any = gzip.GzipFile(fileobj=buffered)
                yield hashed, io.BufferedReader(unpacked, _CHUNK)
            else:
                yield hashed, buffered
    except (OSError, EOFError, zlib.error) as error:
        detail = getattr(error, "strerror", None) or str(error)
        raise TraceError("unreadable", file=str(path), detail=detail) from error
