"""Directories made for one child process and removed with it.

temporary files   a killed process leaves its own, and vLLM leaves a socket for each of its queues
our packages      for another interpreter
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import experiment
import kvsim

PACKAGES = ".packages"
# Maximum length of a Unix socket's path, less the 36 characters of vLLM's socket names.
_MAX_PATH_BYTES = 107 - len("/") - 36


def make_scratch() -> Path | None:
    """Create a directory among the temporary files.

    None if that is not writable or a socket's path would be too long; the child then uses the
    default directory.
    """
    try:
        made = Path(tempfile.mkdtemp(prefix="pagedkv-"))
    except OSError:
        return None
    if len(os.fsencode(made)) > _MAX_PATH_BYTES:
        remove_scratch(made)
        return None
    return made


def remove_scratch(path: Path | None) -> None:
    """Remove the directory and its contents."""
    if path is not None:
        shutil.rmtree(path, ignore_errors=True)


class OwnPackages:
    """A directory of links to our packages, for the path of another interpreter.

    It is beside the log: after a crash it is found there, not lost among temporary files. A
    leftover directory is recreated, because code is imported through its links.
    """

    def __init__(self, place: Path) -> None:
        self._directory = place.absolute() / PACKAGES
        self.path = str(self._directory)
        self.remove()
        self._directory.mkdir()
        for package in (experiment, kvsim):
            assert package.__file__ is not None
            source = Path(package.__file__).resolve().parent
            (self._directory / source.name).symlink_to(source, target_is_directory=True)

    def remove(self) -> None:
        """Remove the directory."""
        shutil.rmtree(self._directory, ignore_errors=True)
