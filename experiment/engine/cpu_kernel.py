"""Attention on the CPU that reads blocks in place, compiled by Numba.

    table of one request         kv of one layer, for one block: heads outside slots
    ┌───┬───┬───┐                ┌── head 0 ──┬── head 1 ──┬─ … ─┐
    │ 7 │ 2 │ 5 │──── block 2 ──►│ s0 s1 … sB │ s0 s1 … sB │     │   each s: head_dim numbers
    └───┴───┴───┘                └────────────┴────────────┴─────┘
      └─┬─┘   └ tile 1
      tile 0: _TILE positions, from as many blocks as it takes

    for each tile:  scores [heads, _TILE] = q · K    a new maximum, exp, a new sum
                    acc  [heads, head_dim] = acc · shrink + weights · V
    at the end:     out = acc / sum

Nothing is gathered, and there is no buffer larger than a tile. Positions of a tile come from
blocks of any size, so a slab and blocks of one slot run through the same loops.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, NamedTuple, TypeVar

import numba
import numpy as np
import torch

from experiment.engine import torch_threads
from experiment.engine.step_inputs import FlatSequences
from experiment.engine.torch_threads import (
    BROKEN,
    cube,
    entry,
    layer,
    make_job,
    matrix,
    next_piece,
    vector,
)

_TILE = 128
# Pieces for each thread: where another process holds a core, its thread does fewer of them.
_PIECES = 4
_CORES = os.cpu_count() or 1  # asked once: the answer comes from files of the kernel
# Below so many products or copies in a layer (some 20 us on one core), handing a part of them to
# another thread costs more than it saves.
_WORTH_A_THREAD = 1 << 15
# Sums may be reordered, but NaN and infinity keep their meaning: a stale read must show.
_REORDERED = {"reassoc", "contract", "arcp", "nsz"}
_F, _I = np.float32, np.int32
_LOG2_E = _F(1.4426950408889634)
# Of 2 to a power between -1/2 and 1/2, without the 1 at the end (Cephes).
TWO_TO_A_FRACTION = (
    1.535336188319500e-4,
    1.339887440266574e-3,
    9.618437357674640e-3,
    5.550332471162809e-2,
    2.402264791363012e-1,
    6.931472028550421e-1,
)
_P0, _P1, _P2, _P3, _P4, _P5 = map(_F, TWO_TO_A_FRACTION)

Floats = Any  # float32 array, C order
Ints = Any  # int32 array, C order
_Function = TypeVar("_Function", bound=Callable[..., Any])


def _compile(signature: str | None, fastmath: set[str]) -> Callable[[_Function], _Function]:
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
    except RuntimeError:  # as in _compile
        return numba.cfunc("void(CPointer(int64))")(function)


@_compile(None, {"contract"})
def _exponentials(scores: Floats, power: Floats, count: int, best: float) -> Any:
    """Replace scores by exp(score - best) and return their sum.

    Numba leaves ``np.exp`` a call for each number; this becomes vector code. A polynomial gives
    2 to the fraction, the exponent field of a float the whole power. There is no
    reordering here: it would undo the rounding.
    """
    bits = power.view(np.int32)
    for i in range(count):
        x = (scores[i] - best) * _LOG2_E
        if x < _F(-126.0):
            x = _F(-126.0)
        whole = np.floor(x + _F(0.5))
        f = x - whole
        p = _P0 * f + _P1
        p = p * f + _P2
        p = p * f + _P3
        p = p * f + _P4
        p = p * f + _P5
        scores[i] = p * f + _F(1.0)
        # NaN has no integer; it stays in the polynomial.
        exponent = np.int32(whole if whole >= _F(-126.0) else _F(0.0))
        bits[i] = (exponent + np.int32(127)) << np.int32(23)
    total = _F(0.0)
    for i in range(count):
        scores[i] *= power[i]
        total += scores[i]
    return total


@_compile(None, _REORDERED)
def _products(
    q: Floats, keys: Floats, table: Ints, scale: float, head: int, heads: int,
    first: int, count: int, scores: Floats,
) -> None:  # fmt: skip
    """Scores of ``heads`` KV heads from ``head`` on, for positions [first, first + count).

    Four slots at a time: their sums do not wait for each other.
    """
    size, dim = keys.shape[2], keys.shape[3]
    group = q.shape[0] // keys.shape[1]
    done = 0
    while done < count:
        block, offset = table[(first + done) // size], (first + done) % size
        run = min(size - offset, count - done)
        for h in range(heads):
            rows = keys[block, head + h, offset : offset + run]
            for g in range(h * group, (h + 1) * group):
                query, found = q[head * group + g], scores[g, done : done + run]
                whole = run - run % 4
                for i in range(0, whole, 4):
                    one, two, three, four = _F(0.0), _F(0.0), _F(0.0), _F(0.0)
                    for c in range(dim):
                        one += query[c] * rows[i, c]
                        two += query[c] * rows[i + 1, c]
                        three += query[c] * rows[i + 2, c]
                        four += query[c] * rows[i + 3, c]
                    found[i], found[i + 1] = one * scale, two * scale
                    found[i + 2], found[i + 3] = three * scale, four * scale
                for i in range(whole, run):
                    total = _F(0.0)
                    for c in range(dim):
                        total += query[c] * rows[i, c]
                    found[i] = total * scale
        done += run


@_compile(None, _REORDERED)
def _add_values(
    weights: Floats, values: Floats, table: Ints, group: int, head: int, heads: int,
    first: int, count: int, acc: Floats,
) -> None:  # fmt: skip
    """Add weighted values of the same positions to ``acc`` [heads * group, head_dim].

    Four slots at a time: a sum is fetched and put back once for them.
    """
    size, dim = values.shape[2], values.shape[3]
    done = 0
    while done < count:
        block, offset = table[(first + done) // size], (first + done) % size
        run = min(size - offset, count - done)
        for h in range(heads):
            rows = values[block, head + h, offset : offset + run]
            for g in range(h * group, (h + 1) * group):
                w, total = weights[g, done : done + run], acc[g]
                whole = run - run % 4
                for i in range(0, whole, 4):
                    for c in range(dim):
                        total[c] += (w[i] * rows[i, c] + w[i + 1] * rows[i + 1, c]) + (
                            w[i + 2] * rows[i + 2, c] + w[i + 3] * rows[i + 3, c]
                        )
                for i in range(whole, run):
                    for c in range(dim):
                        total[c] += w[i] * rows[i, c]
        done += run


@_compile(None, {"contract"})
def _rescale(
    scores: Floats, power: Floats, rows: int, count: int, best: Floats, sums: Floats, acc: Floats
) -> None:
    """Make weights of a tile's scores, and bring what was summed before to the new maximum."""
    for g in range(rows):
        highest = best[g]
        for i in range(count):
            if scores[g, i] > highest:
                highest = scores[g, i]
        shrink = _F(np.exp(best[g] - highest)) if highest > best[g] else _F(1.0)
        best[g] = highest
        sums[g] = sums[g] * shrink + _exponentials(scores[g], power, count, highest)
        for c in range(acc.shape[1]):
            acc[g, c] *= shrink


@_compile(
    "void(float32[:,::1], float32[:,:,:,:,::1], float32[:,:,::1], int32[:,::1], int32[::1],"
    " int32[::1], int32[::1], float32, int64, int64, int64)",
    {"contract"},
)
def _attend(
    q: Floats, kv: Floats, out: Floats, tables: Ints, contexts: Ints, starts: Ints, chosen: Ints,
    scale: float, heads_at_once: int, begin: int, end: int,
) -> None:  # fmt: skip
    """Work on tasks [begin, end): a task is a part of the KV heads of one chosen sequence.

    ``q`` is [tokens, what lies between two of them]: queries are read where the model's product
    has put them, often beside keys and values.
    """
    kv_heads, dim = kv.shape[2], kv.shape[4]
    group = out.shape[1] // kv_heads
    parts = -(-kv_heads // heads_at_once)
    rows = heads_at_once * group
    scores, power = np.empty((rows, _TILE), _F), np.empty(_TILE, _F)
    acc, best, sums = np.empty((rows, dim), _F), np.empty(rows, _F), np.empty(rows, _F)
    for task in range(begin, end):
        s, head = chosen[task // parts], (task % parts) * heads_at_once
        heads = min(heads_at_once, kv_heads - head)
        for row in range(starts[s], starts[s + 1]):
            queries = q[row, : out.shape[1] * dim].reshape(out.shape[1], dim)
            seen = contexts[s] - (starts[s + 1] - 1 - row)
            acc[:], best[:], sums[:] = _F(0.0), _F(-np.inf), _F(0.0)
            for first in range(0, seen, _TILE):
                count = min(_TILE, seen - first)
                _products(queries, kv[0], tables[s], scale, head, heads, first, count, scores)
                _rescale(scores, power, heads * group, count, best, sums, acc)
                _add_values(scores, kv[1], tables[s], group, head, heads, first, count, acc)
            for g in range(heads * group):
                for c in range(dim):
                    out[row, head * group + g, c] = acc[g, c] / sums[g]


@job_body
def _body(address: Any) -> None:
    """:func:`_attend` for every piece that this thread gets of a job of :func:`attend`."""
    job = numba.carray(address, (torch_threads.LONGEST,))
    q, kv, out = matrix(job, 4, _F), layer(job, 7, _F), cube(job, 13, _F)
    tables, contexts, starts = matrix(job, 17, _I), vector(job, 20, _I), vector(job, 22, _I)
    chosen, scale = vector(job, 24, _I), vector(job, 26, _F)[0]
    try:
        begin, end = next_piece(job)
        while begin >= 0:
            _attend(q, kv, out, tables, contexts, starts, chosen, scale, job[3], begin, end)
            begin, end = next_piece(job)
    except Exception:
        job[2] = BROKEN  # nobody sees what leaves a C function


def attend(
    q: torch.Tensor, kv: torch.Tensor, out: torch.Tensor, flat: FlatSequences,
    chosen: torch.Tensor, scale: float,
) -> None:  # fmt: skip
    """Fill the rows of ``out`` that belong to the ``chosen`` sequences (int32 indices).

    ``q`` and ``out`` are [tokens, heads, head_dim], ``out`` contiguous.
    """
    share_out(_body, q, (kv, out), kv.shape, flat, chosen, scale)


def share_out(
    body: Any, q: torch.Tensor, arrays: Sequence[torch.Tensor], shape: Sequence[int],
    flat: FlatSequences, chosen: torch.Tensor, scale: float,
) -> None:  # fmt: skip
    """Call a compiled kernel for all tasks, in pieces where threads are worth it.

    Args:
        body: a C function such as :func:`_body`.
        q: [tokens, heads, head_dim].
        arrays: contiguous; what stands in a job between the queries and the sequences.
        shape: [2, blocks, kv_heads, block_size, head_dim].
    """
    threads, pieces, tasks, heads_at_once = share(flat, chosen, q.shape[1], shape[2:])
    q, rows = rows_of(q)
    held = (*arrays, *flat, chosen, torch.tensor([scale]))  # until all threads have finished
    job = make_job(pieces, tasks, [heads_at_once], [rows, *map(entry, held)])
    run_job(body, job, threads)


def rows_of(q: torch.Tensor) -> tuple[torch.Tensor, tuple[int, int, int]]:
    """Queries whose heads follow each other, and what a job says of them.

    Those are [tokens, heads, head_dim]; that is address, tokens, and the distance from one to the
    next. A single token's distance means nothing to torch, and may be any number.
    """
    tokens, heads, dim = q.shape
    width = heads * dim
    if q.stride(2) != 1 or q.stride(1) != dim or (tokens > 1 and q.stride(0) < width):
        q = q.contiguous()
    return q, (q.data_ptr(), tokens, q.stride(0) if tokens > 1 else width)


class Share(NamedTuple):
    """How a step's attention is divided: a task is so many KV heads of one sequence."""

    threads: int
    pieces: int
    tasks: int
    heads_at_once: int


def share(flat: FlatSequences, chosen: torch.Tensor, heads: int, shape: Sequence[int]) -> Share:
    """Divide the chosen sequences; ``shape`` is [kv_heads, block_size, head_dim]."""
    kv_heads, block_size, dim = shape
    # With all its heads a small block is one long run of memory; a slab is one for each head.
    # The other way round, each run would end before the processor has begun to read ahead.
    heads_at_once = kv_heads if block_size <= _TILE else 1
    products = int(flat.contexts.numpy()[chosen.numpy()].sum()) * heads * dim
    threads, _ = threads_for(products, kv_heads * len(chosen))
    heads_at_once = min(heads_at_once, -(-kv_heads * len(chosen) // threads))
    tasks = len(chosen) * -(-kv_heads // heads_at_once)
    return Share(*threads_for(products, tasks), tasks, heads_at_once)


def threads_for(work: int, tasks: int) -> tuple[int, int]:
    """How many threads so much work is worth, in products or copies, and in how many pieces."""
    threads = min(_threads(), tasks) if work >= _WORTH_A_THREAD else 1
    return (threads, min(tasks, threads * _PIECES)) if threads > 1 else (1, 1)


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
