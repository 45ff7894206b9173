"""Where compiled code is kept: of the engine's loops a directory for each state of their sources.

Numba looks whether the file that a compiled function stands in has changed, and not at those whose
functions it calls. After an update, a loop would go on running the old ones inside.

Compiled code is run as it is found. It lies in the user's own cache directory, whatever directory
of models PAGEDKV_CACHE names, and is refused where another user owns it or can write it.
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
from kvsim.files import file_sha256

TORCH_CACHE = "TORCHINDUCTOR_CACHE_DIR"
_ENGINE = Path(experiment.__file__).parent / "engine"


def code_cache(kind: str) -> Path:
    """The directory of a kind of compiled code; not there where it cannot be made.

    Raises:
        UserError: another user owns it or can write it.
    """
    path = user_cache() / kind
    with suppress(OSError):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(OSError, AttributeError):  # Windows has no user numbers
        about = path.lstat()
        if about.st_uid != os.getuid() or about.st_mode & 0o022:
            raise user_error("error.code_cache", path=str(path))
    return path


def numba_cache() -> Path:
    """The directory for these sources, in the user's cache; whether or not it is there."""
    return code_cache("numba") / state_of(_ENGINE)


def torch_cache() -> Path | None:
    """Where torch keeps what it compiles, in the user's cache; whether or not it is there.

    None where nothing can be kept there, as in a home that is mounted read-only: vLLM makes the
    directory as it is imported, and is not imported where it cannot.
    """
    place = code_cache("torchinductor")
    return place if is_writable(place) else None


def is_empty() -> bool:
    """Whether nothing is kept for these sources yet; False where the directory is not ours."""
    kept = (name for _, _, files in os.walk(numba_cache()) for name in files)
    return "NUMBA_CACHE_DIR" not in os.environ and not any(name.endswith(".nbc") for name in kept)


@cache
def state_of(sources: Path) -> str:
    """A name for what the Python files of a directory contain."""
    found = hashlib.sha256(__version__.encode())
    for path in sorted(sources.rglob("*.py")):
        found.update(f"\n{path.name} {file_sha256(path)}".encode())
    return found.hexdigest()[:16]
