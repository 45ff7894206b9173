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

While a run of slots is computed, the next one is prefetched: that of the next head, the next block
in the table, the values after the keys, or the next tile or sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
import torch

from experiment.engine.cpu import torch_threads
from experiment.engine.cpu.compiled import (
    F32,
    I32,
    Floats,
    Ints,
    jit,
    job_body,
    run_job,
    threads_for,
)
from experiment.engine.cpu.prefetch import LINE, prefetch_line
from experiment.engine.cpu.torch_threads import (
    FAILED,
    cube,
    entry,
    layer,
    make_job,
    matrix,
    next_piece,
    vector,
)
from experiment.engine.step_inputs import FlatSequences

_TILE = 128
_PIECES = 16  # per thread, because lengths of sequences differ widely
# Sums may be reordered, but NaN and infinity propagate, so that stale reads are detected.
_REORDERED = {"reassoc", "contract", "arcp", "nsz"}
_LOG2_E = F32(1.4426950408889634)
# Coefficients of 2 ** x for x between -1/2 and 1/2, without the constant 1 (Cephes).
_P0, _P1, _P2, _P3, _P4, _P5 = map(F32, (
    1.535336188319500e-4, 1.339887440266574e-3, 9.618437357674640e-3, 5.550332471162809e-2,
    2.402264791363012e-1, 6.931472028550421e-1,
))  # fmt: skip


@jit(None, {"contract"})
def _exponentials(scores: Floats, power: Floats, count: int, best: float) -> Any:
    """Replace scores by exp(score - best) and return their sum.

    Vectorised, unlike ``np.exp`` in Numba: a polynomial gives 2 ** fraction, the exponent field of
    a float the integer power. Reordering would undo the rounding, so it is not allowed.
    """
    bits = power.view(np.int32)
    for i in range(count):
        x = (scores[i] - best) * _LOG2_E
        if x < F32(-126.0):
            x = F32(-126.0)
        whole = np.floor(x + F32(0.5))
        f = x - whole
        p = _P0 * f + _P1
        p = p * f + _P2
        p = p * f + _P3
        p = p * f + _P4
        p = p * f + _P5
        scores[i] = p * f + F32(1.0)
        # NaN has no integer; the polynomial propagates it.
        exponent = np.int32(whole if whole >= F32(-126.0) else F32(0.0))
        bits[i] = (exponent + np.int32(127)) << np.int32(23)
    total = F32(0.0)
    for i in range(count):
        scores[i] *= power[i]
        total += scores[i]
    return total


@jit(None, set())
def _address(array: Any) -> Any:
    return np.int64(array.ctypes.data)


@jit(None, set())
def _place(slots: Floats, table: Ints, head: int, position: int) -> Any:
    """Address of a head's numbers at a position of a sequence; ``slots`` are keys or values."""
    size = slots.shape[2]
    return _address(slots[table[position // size], head, position % size])


@jit(None, set())
def _next_run(
    slots: Floats, table: Ints, head: int, h: int, heads: int, at: int, run: int, end: int,
    after: int,
) -> Any:  # fmt: skip
    """Address read after a run of slots.

    The same run of the next head, else the first head's next run before position ``end``, else
    ``after``.
    """
    if h + 1 < heads:
        return _place(slots, table, head + h + 1, at)
    return _place(slots, table, head, at + run) if at + run < end else after


@jit(None, set())
def _prefetch_four(rows: int, first: int, dim: int) -> None:
    """Prefetch four slots of a head, from index ``first`` on; ``rows`` is an address."""
    begin = rows + 4 * dim * first
    for place in range(begin, begin + 4 * 4 * dim, LINE):
        prefetch_line(place)


@jit(None, _REORDERED)
def _products(
    q: Floats, keys: Floats, table: Ints, scale: float, head: int, heads: int,
    first: int, count: int, scores: Floats, after: int,
) -> None:  # fmt: skip
    """Scores of ``heads`` KV heads from ``head`` on, for positions [first, first + count).

    Four slots at a time, whose sums are independent. ``after`` is the address read next; 0:
    unknown.
    """
    size, dim = keys.shape[2], keys.shape[3]
    group = q.shape[0] // keys.shape[1]
    done = 0
    while done < count:
        block, offset = table[(first + done) // size], (first + done) % size
        run = min(size - offset, count - done)
        for h in range(heads):
            rows = keys[block, head + h, offset : offset + run]
            at, end = first + done, first + count
            ahead = 0
            if run >= 4:  # else the search takes longer than it saves
                ahead = _next_run(keys, table, head, h, heads, at, run, end, after)
            for g in range(h * group, (h + 1) * group):
                query, result = q[head * group + g], scores[g, done : done + run]
                whole = run - run % 4
                for i in range(0, whole, 4):
                    if ahead and g == h * group:
                        _prefetch_four(ahead, i, dim)
                    one, two, three, four = F32(0.0), F32(0.0), F32(0.0), F32(0.0)
                    for c in range(dim):
                        one += query[c] * rows[i, c]
                        two += query[c] * rows[i + 1, c]
                        three += query[c] * rows[i + 2, c]
                        four += query[c] * rows[i + 3, c]
                    result[i], result[i + 1] = one * scale, two * scale
                    result[i + 2], result[i + 3] = three * scale, four * scale
                for i in range(whole, run):
                    total = F32(0.0)
                    for c in range(dim):
                        total += query[c] * rows[i, c]
                    result[i] = total * scale
        done += run


@jit(None, _REORDERED)
def _add_values(
    weights: Floats, values: Floats, table: Ints, group: int, head: int, heads: int,
    first: int, count: int, acc: Floats, after: int,
) -> None:  # fmt: skip
    """Add weighted values of the same positions to ``acc`` [heads * group, head_dim].

    Four slots at a time: a sum is loaded and stored once for them. ``after`` is as in
    :func:`_products`.
    """
    size, dim = values.shape[2], values.shape[3]
    done = 0
    while done < count:
        block, offset = table[(first + done) // size], (first + done) % size
        run = min(size - offset, count - done)
        for h in range(heads):
            rows = values[block, head + h, offset : offset + run]
            at, end = first + done, first + count
            ahead = 0
            if run >= 4:  # else the search takes longer than it saves
                ahead = _next_run(values, table, head, h, heads, at, run, end, after)
            for g in range(h * group, (h + 1) * group):
                w, total = weights[g, done : done + run], acc[g]
                whole = run - run % 4
                for i in range(0, whole, 4):
                    if ahead and g == h * group:
                        _prefetch_four(ahead, i, dim)
                    for c in range(dim):
                        total[c] += (w[i] * rows[i, c] + w[i + 1] * rows[i + 1, c]) + (
                            w[i + 2] * rows[i + 2, c] + w[i + 3] * rows[i + 3, c]
                        )
                for i in range(whole, run):
                    for c in range(dim):
                        total[c] += w[i] * rows[i, c]
        done += run


@jit(None, {"contract"})
def _rescale(
    scores: Floats, power: Floats, rows: int, count: int, best: Floats, sums: Floats, acc: Floats
) -> None:
    """Convert a tile's scores to weights, and rescale earlier sums to the new maximum."""
    for g in range(rows):
        highest = best[g]
        for i in range(count):
            if scores[g, i] > highest:
                highest = scores[g, i]
        shrink = F32(np.exp(best[g] - highest)) if highest > best[g] else F32(1.0)
        best[g] = highest
        sums[g] = sums[g] * shrink + _exponentials(scores[g], power, count, highest)
        for c in range(acc.shape[1]):
            acc[g, c] *= shrink


@jit(
    "void(float32[:,::1], float32[:,:,:,:,::1], float32[:,:,::1], int32[:,::1], int32[::1],"
    " int32[::1], int32[::1], float32, int64, int64, int64)",
    {"contract"},
)
def _attend(
    q: Floats, kv: Floats, out: Floats, tables: Ints, contexts: Ints, starts: Ints, chosen: Ints,
    scale: float, heads_at_once: int, begin: int, end: int,
) -> None:  # fmt: skip
    """Work on tasks [begin, end): a task is a part of the KV heads of one chosen sequence.

    ``q`` is [tokens, distance between tokens]: queries are read in place, often next to keys and
    values.
    """
    kv_heads, dim = kv.shape[2], kv.shape[4]
    group = out.shape[1] // kv_heads
    parts = -(-kv_heads // heads_at_once)
    rows = heads_at_once * group
    scores, power = np.empty((rows, _TILE), F32), np.empty(_TILE, F32)
    acc, best, sums = np.empty((rows, dim), F32), np.empty(rows, F32), np.empty(rows, F32)
    for task in range(begin, end):
        s, head = chosen[task // parts], (task % parts) * heads_at_once
        heads = min(heads_at_once, kv_heads - head)
        for row in range(starts[s], starts[s + 1]):
            queries = q[row, : out.shape[1] * dim].reshape(out.shape[1], dim)
            visible = contexts[s] - (starts[s + 1] - 1 - row)
            acc[:], best[:], sums[:] = F32(0.0), F32(-np.inf), F32(0.0)
            for first in range(0, visible, _TILE):
                count = min(_TILE, visible - first)
                values = _place(kv[1], tables[s], head, first)
                _products(
                    queries, kv[0], tables[s], scale, head, heads, first, count, scores, values
                )
                _rescale(scores, power, heads * group, count, best, sums, acc)
                following = 0
                if first + count < visible:
                    following = _place(kv[0], tables[s], head, first + count)
                elif row + 1 == starts[s + 1] and task + 1 < end:
                    s_next, head_next = chosen[(task + 1) // parts], (task + 1) % parts
                    following = _place(kv[0], tables[s_next], head_next * heads_at_once, 0)
                _add_values(
                    scores, kv[1], tables[s], group, head, heads, first, count, acc, following
                )
            for g in range(heads * group):
                for c in range(dim):
                    out[row, head * group + g, c] = acc[g, c] / sums[g]


@job_body
def _body(address: Any) -> None:
    """Run :func:`_attend` for this thread's pieces of a job of :func:`attend`."""
    job = numba.carray(address, (torch_threads.MAX_ENTRIES,))
    q, kv, out = matrix(job, 4, F32), layer(job, 7, F32), cube(job, 13, F32)
    tables, contexts, starts = matrix(job, 17, I32), vector(job, 20, I32), vector(job, 22, I32)
    chosen, scale = vector(job, 24, I32), vector(job, 26, F32)[0]
    try:
        begin, end = next_piece(job)
        while begin >= 0:
            _attend(q, kv, out, tables, contexts, starts, chosen, scale, job[3], begin, end)
            begin, end = next_piece(job)
    except Exception:
        job[2] = FAILED  # a C function cannot raise


def attend(
    q: torch.Tensor, kv: torch.Tensor, out: torch.Tensor, flat: FlatSequences,
    chosen: torch.Tensor, scale: float,
) -> None:  # fmt: skip
    """Fill the rows of ``out`` that belong to the ``chosen`` sequences (int32 indices).

    ``q`` and ``out`` are [tokens, heads, head_dim], ``out`` contiguous.
    """
    run_tasks(_body, q, (kv, out), kv.shape, flat, chosen, scale)


def run_tasks(
    body: Any, q: torch.Tensor, arrays: Sequence[torch.Tensor], shape: Sequence[int],
    flat: FlatSequences, chosen: torch.Tensor, scale: float,
) -> None:  # fmt: skip
    """Call a compiled kernel for all tasks, on several threads if there is enough work.

    Args:
        body: a C function such as :func:`_body`.
        q: [tokens, heads, head_dim].
        arrays: entries of the job between queries and sequences, contiguous.
        shape: [2, blocks, kv_heads, block_size, head_dim].
    """
    threads, pieces, tasks, heads_at_once = _partition(flat, chosen, q.shape[1], shape[2:])
    q, rows = _rows_of(q)
    held = (*arrays, *flat, chosen, torch.tensor([scale]))  # until all threads have finished
    job = make_job(pieces, tasks, [heads_at_once], [rows, *map(entry, held)])
    run_job(body, job, threads)


def _rows_of(q: torch.Tensor) -> tuple[torch.Tensor, tuple[int, int, int]]:
    """Make the heads of queries [tokens, heads, head_dim] contiguous; return them and their entry.

    The entry is address, tokens, and distance between tokens. Torch leaves the distance of a single
    token undefined.
    """
    tokens, heads, dim = q.shape
    width = heads * dim
    if q.stride(2) != 1 or q.stride(1) != dim or (tokens > 1 and q.stride(0) < width):
        q = q.contiguous()
    return q, (q.data_ptr(), tokens, q.stride(0) if tokens > 1 else width)


def _partition(
    flat: FlatSequences, chosen: torch.Tensor, heads: int, shape: Sequence[int]
) -> tuple[int, int, int, int]:
    """Threads, pieces, tasks and the KV heads of a task; ``shape`` is [kv_heads, block_size, dim].

    A task is a group of KV heads of one sequence.
    """
    kv_heads, block_size, dim = shape
    # Runs of memory must be long for the hardware prefetcher: a small block is one run with all its
    # heads, a slab is one run for each head.
    heads_at_once = kv_heads if block_size <= _TILE else 1
    products = int(flat.contexts.numpy()[chosen.numpy()].sum()) * heads * dim
    threads, _ = threads_for(products, kv_heads * len(chosen))
    heads_at_once = min(heads_at_once, -(-kv_heads * len(chosen) // threads))
    tasks = len(chosen) * -(-kv_heads // heads_at_once)
    pieces = threads_for(products, tasks, _PIECES)
    return *pieces, tasks, heads_at_once
