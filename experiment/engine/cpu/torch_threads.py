"""Compiled loops on the OpenMP threads that torch has already, so that there is one set of them.

    this process   libgomp.so.1 ── pool of the main thread ──┬── torch's products
                                                             └── body(job), by GOMP_parallel

A second set of threads beside torch's takes turns with it on the same cores: what spins in one
keeps the other from working. ``GOMP_parallel`` is what a compiler turns ``#pragma omp parallel``
into; LLVM's and Intel's libraries have it as well. Without one of them, :func:`pool` is None and
loops are shared among plain threads.

    job  int64: | taken | pieces | tasks | whole numbers … | address, sizes | address, sizes | …
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

BROKEN = -1  # stands in place of the tasks where a body has raised
LONGEST = 64  # entries of a job, at most
_LIBRARIES = ("libgomp", "libomp", "libiomp5")
_WORD = ir.IntType(64)

Job = Any  # int64 array, as a compiled body sees it


@intrinsic  # type: ignore[untyped-decorator]
def pointer(_context: Any, address: Any) -> Any:
    """An address as what ``numba.carray`` takes."""

    def code(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(address), code


@intrinsic  # type: ignore[untyped-decorator]
def _add_one(_context: Any, _address: Any) -> Any:
    """Add one to the number at an address, and return what it was: no two threads get the same."""

    def code(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        where = builder.inttoptr(arguments[0], _WORD.as_pointer())
        return builder.atomic_rmw("add", where, ir.Constant(_WORD, 1), "monotonic")

    return types.int64(types.int64), code


@numba.njit  # type: ignore[untyped-decorator]
def next_piece(job: Job) -> tuple[int, int]:
    """Tasks [begin, end) that nobody has taken yet; begin is -1: none is left, or one broke."""
    piece = _add_one(np.int64(job.ctypes.data))
    tasks = job[2]  # once: another thread may put BROKEN there meanwhile
    if piece >= job[1] or tasks < 0:
        return -1, -1
    return tasks * piece // job[1], tasks * (piece + 1) // job[1]


@numba.njit  # type: ignore[untyped-decorator]
def vector(job: Job, at: int, kind: Any) -> Any:
    """The array [n] whose address and size stand in a job from ``at`` on."""
    return numba.carray(pointer(job[at]), (job[at + 1],), kind)


@numba.njit  # type: ignore[untyped-decorator]
def matrix(job: Job, at: int, kind: Any) -> Any:
    """The same for [n, m]."""
    return numba.carray(pointer(job[at]), (job[at + 1], job[at + 2]), kind)


@numba.njit  # type: ignore[untyped-decorator]
def cube(job: Job, at: int, kind: Any) -> Any:
    """The same for [n, m, k]."""
    return numba.carray(pointer(job[at]), (job[at + 1], job[at + 2], job[at + 3]), kind)


@numba.njit  # type: ignore[untyped-decorator]
def layer(job: Job, at: int, kind: Any) -> Any:
    """The same for one layer of a pool, [2, blocks, kv_heads, block_size, head_dim]."""
    shape = (job[at + 1], job[at + 2], job[at + 3], job[at + 4], job[at + 5])
    return numba.carray(pointer(job[at]), shape, kind)


def entry(array: torch.Tensor) -> tuple[int, ...]:
    """An array in a job: its address and its sizes. It must outlive the job.

    Raises:
        ValueError: its numbers are not one after another in the memory of the CPU.
    """
    if not array.is_contiguous() or array.device.type != "cpu":
        raise ValueError("an array of a job must be contiguous and on the CPU")
    return (array.data_ptr(), *array.shape)


def make_job(
    pieces: int, tasks: int, numbers: Sequence[int], arrays: Sequence[tuple[int, ...]]
) -> Any:
    """A job of which nothing is taken yet.

    Args:
        pieces: parts that threads take.
        tasks: how many of them a body is to work through, at least as many as pieces.
        numbers: what the body reads behind the header.
        arrays: what :func:`entry` says of each.
    """
    return np.array([0, pieces, tasks, *numbers, *chain.from_iterable(arrays)], np.int64)


@cache
def callable_at(body: int) -> Callable[[int], None]:
    """A compiled body as a function of its job's address, to be run by the calling thread."""
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(body)


@cache
def pool() -> Callable[[int, int, int], None] | None:
    """``run(body, job, threads)`` on torch's threads: addresses of a C function and of its job.

    The caller is one of the threads; the call returns when all have finished. None where the
    library that torch uses cannot be told: none of its kind is loaded, or several are.
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
    """OpenMP libraries of this process, each file once."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return set()
    paths = (Path(line.split(maxsplit=5)[-1]) for line in lines if "/" in line)
    return {path for path in paths if path.name.split(".")[0].split("-")[0] in _LIBRARIES}
