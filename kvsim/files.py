"""Files: written whole or not at all, and their checksums.

Written beside their place, flushed, renamed over it:

    .NAME.PID.RANDOM.part ──► flushed to the disk ──► NAME

What a killed process was writing is told by its name, and whether it is still at it by its id.
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
# What whoever runs this takes from new files; it can only be asked for by setting it.
_MASK = os.umask(0o077)
os.umask(_MASK)


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A file to be written, piece by piece; it takes its place when the block ends well.

    A link in its place is replaced and never followed. Readers see the old file or the new one,
    even if the machine goes down meanwhile.

    Raises:
        OSError: it cannot be written; the old file stands and nothing is left beside it.
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
    """Write all of a file or nothing; directories on the way are made.

    Raises:
        OSError: as :func:`whole_file`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file:
        file.write(content)


def file_sha256(path: Path, advance: Advance = lambda _: None) -> str:
    """Sha256 of one file; ``advance`` is told the bytes of each piece read.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return stream_sha256(file, advance)


def stream_sha256(file: IO[bytes], advance: Advance) -> str:
    """As :func:`file_sha256`, of an open file."""
    digest = hashlib.sha256()
    while piece := file.read(_CHUNK):
        digest.update(piece)
        advance(len(piece))
    return digest.hexdigest()
