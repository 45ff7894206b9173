"""The checksum of a file, here and in experiment/."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import IO

_CHUNK = 1 << 22


Advance = Callable[[int], None]


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
