"""Loops compiled by Numba, and the threads that run them.

@jit        a function that other compiled ones call, or that is compiled as this is imported
@job_body   what a thread is given: a C function over the address of a job
run_job     the body on all threads, each taking pieces until none is left
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
from experiment.engine.cpu.torch_threads import BROKEN

# Pieces for each thread: where another process holds a core, its thread does fewer of them.
_PIECES = 4
_CORES = os.cpu_count() or 1  # asked once: the answer comes from files of the kernel
# Below so many products or copies in a layer (some 20 us on one core), handing a part of them to
# another thread costs more than it saves.
_WORTH_A_THREAD = 1 << 15
F32, I32 = np.float32, np.int32

Floats = Any  # float32 array, C order
Ints = Any  # int32 array, C order
_Function = TypeVar("_Function", bound=Callable[..., Any])


def jit(signature: str | None, fastmath: set[str]) -> Callable[[_Function], _Function]:
    """Numba's compiler, typed; with a signature the function is compiled now, or read back."""
    options: dict[str, Any] = {"nogil": True, "fastmath": fastmath}

    def compiled(function: _Function) -> _Function:
        if signature is None:
            result: _Function = numba.njit(**options)(function)
            return result
        try:
            result = numba.njit(signature, cache=True, **options)(function)
        except RuntimeError:  # no directory for the compiled code can be written
            result = numba.njit(signature, **options)(function)
        return result

    return compiled


def job_body(function: Callable[[Any], None]) -> Any:
    """A C function over the address of a job; compiled now, or read back where that was kept."""
    try:
        return numba.cfunc("void(CPointer(int64))", cache=True)(function)
    except RuntimeError:  # as in jit
        return numba.cfunc("void(CPointer(int64))")(function)


def threads_for(work: int, tasks: int, pieces: int = _PIECES) -> tuple[int, int]:
    """How many threads so much work is worth, in products or copies, and in how many pieces.

    ``pieces`` are those of a thread, at most.
    """
    threads = min(_threads(), tasks) if work >= _WORTH_A_THREAD else 1
    return (threads, min(tasks, threads * pieces)) if threads > 1 else (1, 1)


@cache
def even_pieces(tasks: int, threads: int, most: int) -> int:
    """In how many pieces tasks of one size end soonest on so many threads; ``most`` at most.

    Twelve tasks in eight pieces, of one or two, take two threads as long as seven; in six, as six.
    """
    return min(
        range(threads, most + 1),
        key=lambda pieces: (-(-pieces // threads) * -(-tasks // pieces), -pieces),
    )


def run_job(body: Any, job: Any, threads: int) -> None:
    """A body on torch's threads; on plain ones where torch's cannot be had.

    More than one of torch's are all of them: a smaller team would end those that are left over, and
    torch's next product would start them again. Who finds no piece has nothing to do.

    Raises:
        RuntimeError: the body raised: what it was to fill is not filled.
    """
    address = job.ctypes.data
    alone, together = torch_threads.callable_at(body.address), torch_threads.pool()
    if threads == 1:
        alone(address)
    elif together:
        together(body.address, address, max(threads, torch.get_num_threads()))
    else:
        helpers = [_helpers().submit(alone, address) for _ in range(threads - 1)]
        alone(address)
        for helper in helpers:
            if not helper.cancel():  # one that has not woken up by now has nothing left to do
                helper.result()
    if job[2] == BROKEN:
        raise RuntimeError("a compiled loop broke off")


def _threads() -> int:
    return min(torch.get_num_threads(), _CORES)


@cache
def _helpers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, _CORES - 1), "attention")
