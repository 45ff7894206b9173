"""Environment variables and cores that affect an arm's timing, as recorded for each arm."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from experiment.text.redaction import without_names

_PREFIXES = ("OMP_", "GOMP_", "KMP_", "MKL_", "NUMBA_NUM_", "OPENBLAS_", "VLLM_CPU_OMP_")
# A preloaded library replaces the thread pool. On a GPU: allocators of torch and cuBLAS, visible
# devices and their order.
_NAMES = (
    "LD_PRELOAD", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",
)  # fmt: skip


def thread_facts(given: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables that set the number, placement and waiting of threads, and GPU memory and order.

    Args:
        given: an environment; None: this process's.
    """
    there = os.environ if given is None else given
    return {
        name: without_paths(name, value)
        for name, value in sorted(there.items())
        if name.startswith(_PREFIXES) or name in _NAMES
    }


def without_paths(name: str, value: str) -> str:
    """Value for the record: libraries by file name, home directory redacted."""
    if name == "LD_PRELOAD":
        return " ".join(Path(path).name for path in re.split("[ :]+", value) if path)
    return without_names(value)


def usable_cores() -> list[int] | None:
    """Numbers of the cores that this process may use; None if unknown."""
    try:
        return sorted(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return None
