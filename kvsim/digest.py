"""The checksum of a file, here and in experiment/."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

_CHUNK = 1 << 22


def file_sha256(path: Path, advance: Callable[[int], None] = lambda _: None) -> str:
    """Sha256 of one file; ``advance`` is told the bytes of each piece read.

    Raises:
        OSError: it cannot be read.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_CHUNK):
            digest.update(piece)
            advance(len(piece))
    return digest.hexdigest()
