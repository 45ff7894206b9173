"""Where compiled code is kept: of the engine's loops a directory for each state of their sources.

Numba looks whether the file that a compiled function stands in has changed, and not at those whose
functions it calls. After an update, a loop would go on running the old ones inside.
"""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path

from experiment import __version__
from experiment.user_cache import cache_directory, is_writable
from kvsim.digest import file_sha256

TORCH_CACHE = "TORCHINDUCTOR_CACHE_DIR"
_ENGINE = Path(__file__).parent / "engine"


def numba_cache() -> Path:
    """The directory for these sources, in the user's cache; whether or not it is there."""
    return cache_directory() / "numba" / state_of(_ENGINE)


def torch_cache() -> Path | None:
    """Where torch keeps what it compiles, in the user's cache; whether or not it is there.

    None where nothing can be kept there, as in a home that is mounted read-only: vLLM makes the
    directory as it is imported, and is not imported where it cannot.
    """
    place = cache_directory() / "torchinductor"
    return place if is_writable(place) else None


def is_empty() -> bool:
    """Whether nothing is kept for these sources yet; False where the directory is not ours."""
    kept = (name for _, _, files in os.walk(numba_cache()) for name in files)
    return "NUMBA_CACHE_DIR" not in os.environ and not any(name.endswith(".nbc") for name in kept)


@cache
def state_of(sources: Path) -> str:
    """A name for what the Python files of a directory contain."""
    found = hashlib.sha256(__version__.encode())
    for path in sorted(sources.glob("*.py")):
        found.update(f"\n{path.name} {file_sha256(path)}".encode())
    return found.hexdigest()[:16]
