"""Directories that are made for one child and are gone when it is.

temporary files   a process that is killed leaves what it has, and some that end do, too: vLLM
a socket for each of its queues
our packages      for an interpreter that is not ours
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import experiment
import kvsim

PACKAGES = ".packages"
# Of a socket's path on Linux, less what vLLM names its own by: 36 letters.
_LONGEST = 107 - len("/") - 36


def make_scratch() -> Path | None:
    """A new directory among the temporary files.

    None where nothing can be written there, or where a socket's path would be too long: then the
    child puts its files where everybody does.
    """
    try:
        made = Path(tempfile.mkdtemp(prefix="pagedkv-"))
    except OSError:
        return None
    if len(os.fsencode(made)) > _LONGEST:
        remove_scratch(made)
        return None
    return made


def remove_scratch(path: Path | None) -> None:
    """Remove it and all that is in it."""
    if path is not None:
        shutil.rmtree(path, ignore_errors=True)


class OwnPackages:
    """A directory with nothing but links to our packages, for another interpreter's path.

    It lies beside the log: should we be killed, it is found there, and not lost among temporary
    files. What was left behind is made anew: code is imported from where it leads.
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
        """Remove it."""
        shutil.rmtree(self._directory, ignore_errors=True)
