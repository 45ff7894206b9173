"""Atomic file writes and checksums.

A file is written to a temporary name, flushed, and renamed:

    .NAME.PID.RANDOM.part ──► flushed to the disk ──► NAME

The name of a leftover part shows what was being written, and by which process.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

PART = ".part"
_CHUNK = 1 << 22
Advance = Callable[[int], None]
# The process's umask, which can only be read by setting it.
_MASK = os.umask(0o077)
os.umask(_MASK)


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file to write; it replaces ``path`` atomically when the block ends without error.

    A link at ``path`` is replaced, not followed. Readers see the old file or the new one, even
    after a power failure.

    Raises:
        OSError: it cannot be written; the old file is unchanged and no part is left.
    """
    handle, name = tempfile.mkstemp(
        dir=path.parent, prefix=f".{path.name}.{os.getpid()}.", suffix=PART
    )
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o666 & ~_MASK)
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically and create its parent directories.

    Raises:
        OSError: as :func:`whole_file`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file:
        file.write(content)


def file_sha256(path: Path, advance: Advance = lambda _: None) -> str:
    """Return the sha256 of a file; calls ``advance`` with the bytes of each piece read.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return stream_sha256(file, advance)


def stream_sha256(file: IO[bytes], advance: Advance) -> str:
    """Do the same as :func:`file_sha256` for an open file."""
    digest = hashlib.sha256()
    while piece := file.read(_CHUNK):
        digest.update(piece)
        advance(len(piece))
    return digest.hexdigest()
