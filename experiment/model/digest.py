"""Checksum of a model's weight files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from kvsim.files import file_sha256


def weights_sha256(files: list[Path], advance: Callable[[int], None] = lambda _: None) -> str:
    """SHA-256 of a single weight file, or of the names and digests of several.

    Raises:
        OSError: a file cannot be read.
    """
    if len(files) == 1:
        return file_sha256(files[0], advance)
    whole = hashlib.sha256()
    for path in sorted(files):
        whole.update(f"{file_sha256(path, advance)}  {path.name}\n".encode())
    return whole.hexdigest()
