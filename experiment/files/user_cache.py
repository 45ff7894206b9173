"""Cache directory for built models and compiled code.

PAGEDKV_CACHE            if set
~/.cache/pagedkv-lab     the user's cache directory
/tmp/pagedkv-lab-1000    if that is not writable: a read-only or foreign home, or ``/``
"""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

import platformdirs

from experiment.files.bounded_reading import expand_path
from experiment.text.errors import user_error
from experiment.text.messages import Message, message

VARIABLE = "PAGEDKV_CACHE"
# Temporary directory of the first process, passed to children, which have their own.
TEMPORARY = "PAGEDKV_TMPDIR"


def cache_directory() -> Path:
    """``PAGEDKV_CACHE``, else :func:`user_cache`."""
    named = os.environ.get(VARIABLE)
    return expand_path(named).absolute() if named else user_cache()


def user_cache() -> Path:
    """The user's cache directory, or a private directory among the temporary files.

    Raises:
        UserError: the directory among the temporary files belongs to another user.
    """
    home = home_cache()
    return home if is_writable(home) else _temporary(home)


def home_cache() -> Path:
    """The platform's cache directory of the user, writable or not."""
    try:
        return Path(platformdirs.user_cache_dir("pagedkv-lab")).absolute()
    except RuntimeError:  # no HOME and no such user id, as in containers
        return Path("/.cache/pagedkv-lab").absolute()


def cache_notice() -> Message | None:
    """Notice that the cache is among the temporary files; None if it is not."""
    home = home_cache()
    if os.environ.get(VARIABLE) or is_writable(home):
        return None
    return message("note.cache_moved", home=str(home), path=str(user_cache()))


def is_writable(place: Path) -> bool:
    """Whether files can be created in a directory, or the directory itself if it is missing."""
    there = next(each for each in (place, *place.parents) if os.access(each, os.F_OK))
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def temporary_files() -> str:
    """Temporary directory of the first process.

    Raises:
        OSError: there is no writable temporary directory.
    """
    return os.environ.get(TEMPORARY) or tempfile.gettempdir()


def _temporary(home: Path) -> Path:
    user = os.getuid() if hasattr(os, "getuid") else ""
    try:
        path = Path(temporary_files(), f"pagedkv-lab-{user}")
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
        about = path.lstat()
    except OSError:  # nothing is writable: the code that needs the cache reports it
        return home
    shared = about.st_uid != user or stat.S_IMODE(about.st_mode) & 0o077
    if not stat.S_ISDIR(about.st_mode) or (user != "" and shared):
        raise user_error("error.model.cache_not_own", home=str(home), path=str(path))
    return path
