"""Where models that are built here and code that is compiled here are kept.

PAGEDKV_CACHE            where it is set
~/.cache/pagedkv-lab     the system's directory for caches of this user
/tmp/pagedkv-lab-1000    where that cannot be written: a home that is read-only, another's or ``/``
"""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

import platformdirs

from experiment.files.bounded_reading import given_path
from experiment.text.errors import user_error
from experiment.text.messages import Message, message

VARIABLE = "PAGEDKV_CACHE"
# Where the first process has its temporary files; a child, whose own are elsewhere, is handed it.
TEMPORARY = "PAGEDKV_TMPDIR"


def cache_directory() -> Path:
    """``PAGEDKV_CACHE``, else :func:`user_cache`."""
    named = os.environ.get(VARIABLE)
    return given_path(named).absolute() if named else user_cache()


def user_cache() -> Path:
    """The user's own cache directory, or one of theirs among the temporary files.

    Raises:
        UserError: the directory among the temporary files belongs to someone else.
    """
    home = home_cache()
    return home if is_writable(home) else _temporary(home)


def home_cache() -> Path:
    """The system's directory for caches of this user, whether or not it can be written."""
    try:
        return Path(platformdirs.user_cache_dir("pagedkv-lab")).absolute()
    except RuntimeError:  # no HOME, and nobody of this number: as containers do, in ``/``
        return Path("/.cache/pagedkv-lab").absolute()


def cache_notice() -> Message | None:
    """That the cache is among the temporary files; None where it is not."""
    home = home_cache()
    if os.environ.get(VARIABLE) or is_writable(home):
        return None
    return message("note.cache_moved", home=str(home), path=str(user_cache()))


def is_writable(place: Path) -> bool:
    """Whether files can be made in a directory, or the directory itself where there is none."""
    there = next(each for each in (place, *place.parents) if os.access(each, os.F_OK))
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def temporary_files() -> str:
    """Where the first process has its temporary files.

    Raises:
        OSError: there is no place for any.
    """
    return os.environ.get(TEMPORARY) or tempfile.gettempdir()


def _temporary(home: Path) -> Path:
    user = os.getuid() if hasattr(os, "getuid") else ""
    try:
        path = Path(temporary_files(), f"pagedkv-lab-{user}")
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
        about = path.lstat()
    except OSError:  # nothing can be written anywhere: what needs it says so
        return home
    shared = about.st_uid != user or stat.S_IMODE(about.st_mode) & 0o077
    if not stat.S_ISDIR(about.st_mode) or (user != "" and shared):
        raise user_error("error.model.cache_not_own", home=str(home), path=str(path))
    return path
