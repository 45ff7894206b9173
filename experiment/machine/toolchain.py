"""Requirements of GPU kernels: the driver, and Triton's C compiler.

The compiler is found as in ``triton/runtime/build.py`` of Triton 3.7. Driver versions are the
minimum of NVIDIA's minor-version compatibility, docs.nvidia.com/deploy/cuda-compatibility.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path

_DRIVERS = {11: 450, 12: 525, 13: 580}


def minimum_driver(cuda: str | None) -> int | None:
    """Branch of the oldest NVIDIA driver for a CUDA version such as 13.0; None if unknown."""
    major = (cuda or "").partition(".")[0]
    return _DRIVERS.get(int(major)) if major.isdigit() else None


def c_compiler() -> str | None:
    """Name of the C compiler; None if it or Python's headers are missing."""
    return find_compiler() if has_headers() else None


def find_compiler() -> str | None:
    """Name of the C compiler, from the variable CC first; None if there is none."""
    named = os.environ.get("CC")
    for name in [named] if named else ("gcc", "clang"):
        if shutil.which(name):
            return Path(name).name
    return None


def has_headers() -> bool:
    """Whether Python's headers are installed."""
    scheme = sysconfig.get_default_scheme()
    scheme = "posix_prefix" if scheme == "posix_local" else scheme  # Debian
    return Path(sysconfig.get_paths(scheme)["include"], "Python.h").is_file()
