"""Environment variables of thread pools; libraries read them on import.

    torch      an OpenMP pool of OMP_NUM_THREADS threads; between two operations they spin for a
               while, then sleep
    ours       compiled loops on torch's pool (experiment/engine/cpu/torch_threads.py)
    vLLM       its own pools, bound and configured by vLLM

On a quiet machine the libraries' default waiting is used. Under background load, spinning threads
block other threads, ours included, so spinning is bounded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache

from experiment.files.code_cache import numba_cache
from experiment.machine.background_load import is_busy, min_background_load
from experiment.machine.thread_record import usable_cores

# The defaults are milliseconds or more. 1,000 iterations of GNU's loop, about 50 µs, cover the time
# that threads of one operation wait for each other; see docs/performance.md for the cost of both.
# Intel's and LLVM's OpenMP count milliseconds.
WAITING = {"GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "0"}
_DECIDED = ("OMP_WAIT_POLICY", *WAITING)
_COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def thread_variables(threads: int | None, given: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables for our arms; variables set by the user are kept.

    Args:
        threads: of each pool; None: the libraries' default.
        given: the environment so far; None: this process's.
    """
    there = os.environ if given is None else given
    wanted = {"NUMBA_CACHE_DIR": str(numba_cache())}
    found = {name: value for name, value in wanted.items() if name not in there}
    if not any(name in there for name in _DECIDED) and has_background_load():
        found |= WAITING
    return found | thread_counts(threads)


@cache
def has_background_load() -> bool:
    """Whether there is background load; determined once, so that all arms of a run wait alike.

    Call it while no arm runs. If unknown, the busy setting is used, because it costs less when
    wrong.
    """
    cores = min_background_load()
    return cores is None or is_busy(cores)


def thread_counts(threads: int | None) -> dict[str, str]:
    """Sizes of the pools; the config overrides the environment."""
    return {name: str(threads) for name in _COUNTS} if threads else {}


def bound_cores(threads: int) -> str:
    """The first usable cores, as ``VLLM_CPU_OMP_THREADS_BIND`` takes them, such as ``0,1``.

    vLLM's default (``auto``) reserves a core for its scheduler, which leaves one of two.
    """
    cores = usable_cores() or range(os.cpu_count() or 1)
    return ",".join(map(str, cores[:threads]))
