"""Directories of compiled code, one for each state of the engine's sources.

Numba invalidates a compiled function only when its own file changes, not when a function that it
calls does. A directory for each state of the sources avoids stale code after an update.

Compiled code is executed as found. It is always in the user's own cache directory, never in
``PAGEDKV_CACHE``, and is refused if another user owns it or can write to it.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from functools import cache
from pathlib import Path

import experiment
from experiment import __version__
from experiment.files.user_cache import is_writable, user_cache
from experiment.text.errors import user_error
from kvsim.base.files import file_sha256

TORCH_CACHE = "TORCHINDUCTOR_CACHE_DIR"
_ENGINE = Path(experiment.__file__).parent / "engine"


def code_cache(kind: str) -> Path:
    """Directory for one kind of compiled code; it may not exist if it cannot be created.

    Raises:
        UserError: another user owns the directory or can write to it.
    """
    path = user_cache() / kind
    with suppress(OSError):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(OSError, AttributeError):  # no user ids on Windows
        about = path.lstat()
        if about.st_uid != os.getuid() or about.st_mode & 0o022:
            raise user_error("error.code_cache", path=str(path))
    return path


def numba_cache() -> Path:
    """Numba's cache directory for the present sources; it may not exist."""
    return code_cache("numba") / state_of(_ENGINE)


def torch_cache() -> Path | None:
    """torch's compile cache in the user's cache directory; it may not exist.

    None if it is not writable. vLLM creates the directory on import and fails if it cannot.
    """
    place = code_cache("torchinductor")
    return place if is_writable(place) else None


def is_empty() -> bool:
    """Whether there is no compiled code for these sources; False if Numba's cache is elsewhere."""
    kept = (name for _, _, files in os.walk(numba_cache()) for name in files)
    return "NUMBA_CACHE_DIR" not in os.environ and not any(name.endswith(".nbc") for name in kept)


@cache
def state_of(sources: Path) -> str:
    """Hash of the contents of all Python files below a directory."""
    found = hashlib.sha256(__version__.encode())
    for path in sorted(sources.rglob("*.py")):
        found.update(f"\n{path.name} {file_sha256(path)}".encode())
    return found.hexdigest()[:16]
