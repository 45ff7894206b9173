"""Run compiled loops on torch's OpenMP threads.

    this process   libgomp.so.1 ── pool of the main thread ──┬── torch's products
                                                             └── body(job), by GOMP_parallel

A second set of threads would compete with torch's for the same cores, because idle OpenMP threads
spin. Compilers translate ``#pragma omp parallel`` to ``GOMP_parallel``, which LLVM's and Intel's
libraries have too. Without such a library, Python threads are used.

    job  int64: | taken | pieces | tasks | integers … | address, sizes | address, sizes | …
                  every thread takes the next piece, until all are taken
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

FAILED = -1  # replaces the tasks of a job whose body has raised
MAX_ENTRIES = 64  # of a job
_LIBRARIES = ("libgomp", "libomp", "libiomp5")
_WORD = ir.IntType(64)

Job = Any  # int64 array, in compiled code


@intrinsic  # type: ignore[untyped-decorator]
def pointer(_context: Any, address: Any) -> Any:
    """Convert an address to a pointer for ``numba.carray``."""

    def code(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(address), code


@intrinsic  # type: ignore[untyped-decorator]
def _add_one(_context: Any, _address: Any) -> Any:
    """Atomically increment the number at an address; return its previous value."""

    def code(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        where = builder.inttoptr(arguments[0], _WORD.as_pointer())
        return builder.atomic_rmw("add", where, ir.Constant(_WORD, 1), "monotonic")

    return types.int64(types.int64), code


@numba.njit  # type: ignore[untyped-decorator]
def next_piece(job: Job) -> tuple[int, int]:
    """Take the next piece, tasks [begin, end); begin is -1 if none is left or a body failed."""
    piece = _add_one(np.int64(job.ctypes.data))
    tasks = job[2]  # read once: another thread may set FAILED
    if piece >= job[1] or tasks < 0:
        return -1, -1
    return tasks * piece // job[1], tasks * (piece + 1) // job[1]


@numba.njit  # type: ignore[untyped-decorator]
def vector(job: Job, at: int, kind: Any) -> Any:
    """The array [n] of the entry at index ``at`` of a job."""
    return numba.carray(pointer(job[at]), (job[at + 1],), kind)


@numba.njit  # type: ignore[untyped-decorator]
def matrix(job: Job, at: int, kind: Any) -> Any:
    """As :func:`vector`, for [n, m]."""
    return numba.carray(pointer(job[at]), (job[at + 1], job[at + 2]), kind)


@numba.njit  # type: ignore[untyped-decorator]
def cube(job: Job, at: int, kind: Any) -> Any:
    """As :func:`vector`, for [n, m, k]."""
    return numba.carray(pointer(job[at]), (job[at + 1], job[at + 2], job[at + 3]), kind)


@numba.njit  # type: ignore[untyped-decorator]
def layer(job: Job, at: int, kind: Any) -> Any:
    """As :func:`vector`, for a layer of a pool, [2, blocks, kv_heads, block_size, head_dim]."""
    shape = (job[at + 1], job[at + 2], job[at + 3], job[at + 4], job[at + 5])
    return numba.carray(pointer(job[at]), shape, kind)


def entry(array: torch.Tensor) -> tuple[int, ...]:
    """Entry of an array in a job: address and sizes. The array must outlive the job.

    Raises:
        ValueError: not contiguous, or not on the CPU.
    """
    if not array.is_contiguous() or array.device.type != "cpu":
        raise ValueError("an array of a job must be contiguous and on the CPU")
    return (array.data_ptr(), *array.shape)


def make_job(
    pieces: int, tasks: int, numbers: Sequence[int], arrays: Sequence[tuple[int, ...]]
) -> Any:
    """Create a job, int64 [entries].

    Args:
        pieces: parts that threads take.
        tasks: number of tasks, at least ``pieces``.
        numbers: integers after the header.
        arrays: an :func:`entry` for each array.
    """
    return np.array([0, pieces, tasks, *numbers, *chain.from_iterable(arrays)], np.int64)


@cache
def callable_at(body: int) -> Callable[[int], None]:
    """Wrap the compiled body at an address as a function of its job's address."""
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(body)


@cache
def parallel_region() -> Callable[[int, int, int], None] | None:
    """Return ``run(body, job, threads)`` for torch's threads; body and job are addresses.

    The caller is one of the threads; the call returns when all have finished. None if torch's
    OpenMP library cannot be identified: none is loaded, or several are.
    """
    loaded = _loaded()
    if len(loaded) != 1:
        return None
    try:
        parallel = ctypes.CDLL(str(loaded.pop())).GOMP_parallel
    except (OSError, AttributeError):
        return None
    parallel.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    parallel.restype = None

    def run(body: int, job: int, threads: int) -> None:
        parallel(body, job, threads, 0)

    return run


def _loaded() -> set[Path]:
    """OpenMP libraries loaded in this process."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return set()
    paths = (Path(line.split(maxsplit=5)[-1]) for line in lines if "/" in line)
    return {path for path in paths if path.name.split(".")[0].split("-")[0] in _LIBRARIES}
