"""Variables of thread pools: read when a library is imported, so a child is born with them.

    torch      an OpenMP pool of OMP_NUM_THREADS threads; between two operations they spin for a
               while, then sleep
    ours       compiled loops on torch's pool (experiment/engine/cpu/torch_threads.py)
    vLLM       pools of its own, bound and told to wait by vLLM itself

On a quiet machine threads wait as the library lets them. Where other programs want the cores, a
thread that spins keeps them from working, and our own threads among them: spinning is bounded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache

from experiment.files.code_cache import numba_cache
from experiment.machine.background_load import BUSY_CORES, others_cores

# The libraries' own bounds are milliseconds and more. A thousand turns of GNU's loop, some 50
# microseconds, are as long as threads of one operation wait for each other; docs/performance.md
# has what either costs. Intel's and LLVM's count milliseconds.
WAITING = {"GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "0"}
_DECIDED = ("OMP_WAIT_POLICY", *WAITING)
_LOOKS = 3
_COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def thread_variables(threads: int | None, given: Mapping[str, str] | None = None) -> dict[str, str]:
    """What an arm of ours is started with; what the person has set is left as it is.

    Args:
        threads: of each pool; None leaves the number to the libraries.
        given: the environment so far; None: this process's.
    """
    there = os.environ if given is None else given
    wanted = {"NUMBA_CACHE_DIR": str(numba_cache())}
    found = {name: value for name, value in wanted.items() if name not in there}
    if not any(name in there for name in _DECIDED) and crowded():
        found |= WAITING
    return found | thread_counts(threads)


@cache
def crowded() -> bool:
    """Whether other programs keep cores busy; asked once, so that all arms of a run wait alike.

    Call it while none of ours works. Where nobody knows, what is right on a busy machine costs
    less than the other mistake. A busy moment is no busy machine: it is looked at again.
    """
    looks = (others_cores() for _ in range(_LOOKS))
    return all(cores is None or cores > BUSY_CORES for cores in looks)


def thread_counts(threads: int | None) -> dict[str, str]:
    """Sizes of the pools; a config's number stands above what the environment says."""
    return {name: str(threads) for name in _COUNTS} if threads else {}


def bound_cores(threads: int) -> str:
    """The first usable cores as vLLM's ``VLLM_CPU_OMP_THREADS_BIND`` takes them, such as ``0,1``.

    vLLM's own choice (``auto``) keeps a core for its scheduler, which of two leaves it one.
    """
    known = hasattr(os, "sched_getaffinity")
    cores = sorted(os.sched_getaffinity(0)) if known else list(range(os.cpu_count() or 1))
    return ",".join(map(str, cores[:threads]))
