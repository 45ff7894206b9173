"""What Triton builds the launchers of its kernels with, once per machine.

Follows ``triton/runtime/build.py`` of Triton 3.7.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path


def c_compiler() -> str | None:
    """Name of the C compiler; None where there is none, or where Python's headers are missing."""
    return find_compiler() if has_headers() else None


def find_compiler() -> str | None:
    """Name of the C compiler, the variable CC first; None where there is none."""
    named = os.environ.get("CC")
    for name in [named] if named else ("gcc", "clang"):
        if shutil.which(name):
            return Path(name).name
    return None


def has_headers() -> bool:
    """Whether Python's headers are installed."""
    scheme = sysconfig.get_default_scheme()
    scheme = "posix_prefix" if scheme == "posix_local" else scheme  # Debian's
    return Path(sysconfig.get_paths(scheme)["include"], "Python.h").is_file()
