"""Loops compiled by Numba, and the threads that run them.

@jit        compile a function, on its first call or, with a signature, on import
@job_body   compile the function of a thread: a C function that takes the address of a job
run_job     run a body on all threads; each takes pieces until none is left
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

import numba
import numpy as np
import torch

from experiment.engine.cpu import torch_threads
from experiment.engine.cpu.torch_threads import FAILED

# Pieces per thread, so that the thread of a busy core can do fewer.
_PIECES = 4
_CORES = os.cpu_count() or 1  # once: reads files of the kernel
# Products or copies of a layer (some 20 us on one core) from which a second thread is faster.
_WORTH_A_THREAD = 1 << 15
F32, I32 = np.float32, np.int32

Floats = Any  # float32 array, C order
Ints = Any  # int32 array, C order
_Function = TypeVar("_Function", bound=Callable[..., Any])


def jit(signature: str | None, fastmath: set[str]) -> Callable[[_Function], _Function]:
    """Typed ``numba.njit``; with a signature, compile now or load from the cache."""
    options: dict[str, Any] = {"nogil": True, "fastmath": fastmath}

    def compiled(function: _Function) -> _Function:
        if signature is None:
            result: _Function = numba.njit(**options)(function)
            return result
        try:
            result = numba.njit(signature, cache=True, **options)(function)
        except RuntimeError:  # no writable cache directory
            result = numba.njit(signature, **options)(function)
        return result

    return compiled


def job_body(function: Callable[[Any], None]) -> Any:
    """Compile a C function that takes the address of a job, or load it from the cache."""
    try:
        return numba.cfunc("void(CPointer(int64))", cache=True)(function)
    except RuntimeError:  # as in jit
        return numba.cfunc("void(CPointer(int64))")(function)


def threads_for(work: int, tasks: int, pieces: int = _PIECES) -> tuple[int, int]:
    """Number of threads and of pieces for ``work`` products or copies.

    ``pieces`` is the maximum per thread.
    """
    threads = min(_threads(), tasks) if work >= _WORTH_A_THREAD else 1
    return (threads, min(tasks, threads * pieces)) if threads > 1 else (1, 1)


@cache
def even_pieces(tasks: int, threads: int, most: int) -> int:
    """Number of pieces, at most ``most``, with which tasks of equal size finish first.

    Twelve tasks on two threads take the time of seven in eight pieces, and of six in six pieces.
    """
    return min(
        range(threads, most + 1),
        key=lambda pieces: (-(-pieces // threads) * -(-tasks // pieces), -pieces),
    )


def run_job(body: Any, job: Any, threads: int) -> None:
    """Run a body on torch's threads, or on Python threads if torch's are not available.

    With more than one thread all of torch's are used: OpenMP would end the others, and torch's next
    product would start them again.

    Raises:
        RuntimeError: the body raised; its output is incomplete.
    """
    address = job.ctypes.data
    alone, together = torch_threads.callable_at(body.address), torch_threads.parallel_region()
    if threads == 1:
        alone(address)
    elif together:
        together(body.address, address, max(threads, torch.get_num_threads()))
    else:
        futures = [_executor().submit(alone, address) for _ in range(threads - 1)]
        alone(address)
        for future in futures:
            if not future.cancel():  # a thread that has not started has nothing left to do
                future.result()
    if job[2] == FAILED:
        raise RuntimeError("a compiled loop failed")


def _threads() -> int:
    return min(torch.get_num_threads(), _CORES)


@cache
def _executor() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, _CORES - 1), "attention")
