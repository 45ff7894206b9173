"""A trace file as bytes: hashed as they lie on the disk, unpacked where they are packed."""

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
# What gzip makes two hundred times smaller is no trace: of rows with numbers it makes a tenth.
MAX_UNPACKED = 64 << 20
_MOST_PACKED = 200
_GZIP = b"\x1f\x8b"


class Hashed(io.RawIOBase):
    """Bytes of a file, counted and hashed as they pass.

    No more of them than its size when it was opened: some files of ``/proc`` have no end.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        self._digest = hashlib.sha256()
        self.passed = 0

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer from the file; returns how far."""
        data = self._next(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _next(self, most: int) -> bytes:
        data = self._file.read(min(most, self._size - self.passed))
        self._digest.update(data)
        self.passed += len(data)
        return data

    def drain(self) -> str:
        """Read what is left and return the sha256 of all of it."""
        while self._next(_CHUNK):
            pass
        return self._digest.hexdigest()


class _Unpacked(io.RawIOBase):
    """What a gzip file holds, as long as it is no more than a trace could be."""

    def __init__(self, packed: IO[bytes], hashed: Hashed, path: Path) -> None:
        self._stream = gzip.GzipFile(fileobj=packed)
        self._hashed, self._path = hashed, path
        self._passed = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size = self._stream.readinto(buffer)
        self._passed += size
        if self._passed > MAX_UNPACKED + _MOST_PACKED * self._hashed.passed:
            raise TraceError("unpacks", file=str(self._path), times=_MOST_PACKED)
        return size


@contextmanager
def opened(path: Path) -> Iterator[tuple[Hashed, io.BufferedReader[Any]]]:
    """A file, hashed, and its bytes unpacked where it is a gzip file.

    Raises:
        TraceError: ``unreadable``: it is no file, cannot be read, or its packing is damaged;
            while reading ``unpacks``: it is packed as no trace can be.
    """
    try:
        kind = path.stat().st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):  # waited for, or without end
            raise OSError(errno.ESPIPE, os.strerror(errno.ESPIPE), str(path))
        with path.open("rb") as file:
            hashed = Hashed(file)
            buffered = io.BufferedReader(hashed, _CHUNK)
            packed = buffered.peek(2)[:2] == _GZIP
            if packed:
                unpacked = _Unpacked(buffered, hashed, path)
                yield hashed, io.BufferedReader(unpacked, _CHUNK)
            else:
                yield hashed, buffered
    except (OSError, EOFError, zlib.error) as error:
        detail = getattr(error, "strerror", None) or str(error)
        raise TraceError("unreadable", file=str(path), detail=detail) from error
