"""What a process finds of variables that move its figures, and cores: written down for each arm."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from experiment.text.redaction import without_names

_PREFIXES = ("OMP_", "GOMP_", "KMP_", "MKL_", "NUMBA_NUM_", "OPENBLAS_", "VLLM_CPU_OMP_")
# A pool that is loaded before the program is another one than it was built with. On a GPU: how
# torch's allocator and cuBLAS take memory, and which GPU is the first.
_NAMES = (
    "LD_PRELOAD", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",
)  # fmt: skip


def thread_facts(given: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables that tell pools how many threads they have, where they run and how they wait.

    And those of a GPU's memory and order.

    Args:
        given: an environment; None: this process's.
    """
    there = os.environ if given is None else given
    return {
        name: without_places(name, value)
        for name, value in sorted(there.items())
        if name.startswith(_PREFIXES) or name in _NAMES
    }


def without_places(name: str, value: str) -> str:
    """A variable's value for the record: libraries by their names, no home directory."""
    if name == "LD_PRELOAD":
        return " ".join(Path(path).name for path in re.split("[ :]+", value) if path)
    return without_names(value)


def usable_cores() -> list[int] | None:
    """Numbers of the cores that this process may run on; None where the system does not tell."""
    known = hasattr(os, "sched_getaffinity")
    return sorted(os.sched_getaffinity(0)) if known else None
