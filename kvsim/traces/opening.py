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
# Traces compress about tenfold; a ratio of more than 200 is an attack or not a trace.
MAX_UNPACKED = 64 << 20
_MAX_RATIO = 200
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


class _Decompressed(io.RawIOBase):
    """Content of a gzip file, with a limit on the compression ratio."""

    def __init__(self, packed: IO[bytes], hashed: Hashed, path: Path) -> None:
        self._stream = gzip.GzipFile(fileobj=packed)
        self._hashed, self._path = hashed, path
        self._passed = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size = self._stream.readinto(buffer)
        self._passed += size
        if self._passed > MAX_UNPACKED + _MAX_RATIO * self._hashed.passed:
            raise TraceError("unpacks", file=str(self._path), times=_MAX_RATIO)
        return size


@contextmanager
def open_trace(path: Path) -> Iterator[tuple[Hashed, io.BufferedReader[Any]]]:
    """Open a file for hashing, and decompress it if it is gzipped.

    Raises:
        TraceError: ``unreadable``: not a regular file, not readable, or damaged gzip; while
            reading ``unpacks``: an implausible compression ratio.
    """
    try:
        kind = path.stat().st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):  # a pipe would block, or be endless
            raise OSError(errno.ESPIPE, os.strerror(errno.ESPIPE), str(path))
        with path.open("rb") as file:
            hashed = Hashed(file)
            buffered = io.BufferedReader(hashed, _CHUNK)
            packed = buffered.peek(2)[:2] == _GZIP
            if packed:
                decompressed = _Decompressed(buffered, hashed, path)
                yield hashed, io.BufferedReader(decompressed, _CHUNK)
            else:
                yield hashed, buffered
    except (OSError, EOFError, zlib.error) as error:
        detail = getattr(error, "strerror", None) or str(error)
        raise TraceError("unreadable", file=str(path), detail=detail) from error
