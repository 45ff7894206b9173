"""Attention on the CPU that reads int8 blocks in place, compiled by Numba.

    keys    score = scale · s · (Σ q·k + ½ Σ q)              s: scale of the block and head
    values  acc  += weight · s · v,  at the end of the tile  acc += ½ Σ weight · s

As :mod:`experiment.engine.cpu.attention_kernel`; numbers are widened in the loop. -128 is NaN. Only
the first number of each slot and head is checked: slots are written and poisoned whole.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch

from experiment.engine.cpu import torch_threads
from experiment.engine.cpu.attention_kernel import _REORDERED, _TILE, _rescale, run_tasks
from experiment.engine.cpu.compiled import F32, I32, Floats, Ints, jit, job_body
from experiment.engine.cpu.torch_threads import FAILED, cube, layer, matrix, next_piece, vector
from experiment.engine.quantized import POISON, QuantizedKV
from experiment.engine.step_inputs import FlatSequences

_I8 = np.int8
_HALF = F32(0.5)
_NAN = F32(np.nan)


@jit(None, _REORDERED)
def _products(
    q: Floats, halves: Floats, keys: Ints, scales: Floats, table: Ints, scale: float, head: int,
    heads: int, first: int, count: int, scores: Floats,
) -> None:  # fmt: skip
    """Scores of ``heads`` KV heads from ``head`` on, for positions [first, first + count)."""
    size, dim = keys.shape[2], keys.shape[3]
    group = q.shape[0] // keys.shape[1]
    done = 0
    while done < count:
        block, offset = table[(first + done) // size], (first + done) % size
        run = min(size - offset, count - done)
        for h in range(heads):
            factor = scale * scales[block, head + h]
            for slot in range(run):
                poison = keys[block, head + h, offset + slot, 0] == POISON
                times = _NAN if poison else factor
                for g in range(h * group, (h + 1) * group):
                    total = halves[head * group + g]
                    for c in range(dim):
                        k = F32(keys[block, head + h, offset + slot, c])
                        total += q[head * group + g, c] * k
                    scores[g, done + slot] = total * times
        done += run


@jit(None, _REORDERED)
def _add_values(
    weights: Floats, values: Ints, scales: Floats, table: Ints, group: int, head: int, heads: int,
    first: int, count: int, acc: Floats,
) -> None:  # fmt: skip
    """Add weighted values of the same positions to ``acc`` [heads * group, head_dim]."""
    size, dim = values.shape[2], values.shape[3]
    halves = np.zeros(heads * group, F32)
    done = 0
    while done < count:
        block, offset = table[(first + done) // size], (first + done) % size
        run = min(size - offset, count - done)
        for h in range(heads):
            factor = scales[block, head + h]
            for slot in range(run):
                poison = values[block, head + h, offset + slot, 0] == POISON
                times = _NAN if poison else factor
                for g in range(h * group, (h + 1) * group):
                    weight = weights[g, done + slot] * times
                    halves[g] += weight
                    for c in range(dim):
                        acc[g, c] += weight * F32(values[block, head + h, offset + slot, c])
        done += run
    for g in range(heads * group):
        for c in range(dim):
            acc[g, c] += _HALF * halves[g]


@jit(
    "void(float32[:,::1], int8[:,:,:,:,::1], float32[:,:,::1], float32[:,:,::1], int32[:,::1],"
    " int32[::1], int32[::1], int32[::1], float32, int64, int64, int64)",
    {"contract"},
)
def _attend(
    q: Floats, kv: Ints, kv_scales: Floats, out: Floats, tables: Ints, contexts: Ints,
    starts: Ints, chosen: Ints, scale: float, heads_at_once: int, begin: int, end: int,
) -> None:  # fmt: skip
    """Work on tasks [begin, end): a task is a part of the KV heads of one chosen sequence."""
    kv_heads, dim = kv.shape[2], kv.shape[4]
    group = out.shape[1] // kv_heads
    parts = -(-kv_heads // heads_at_once)
    rows = heads_at_once * group
    scores, power = np.empty((rows, _TILE), F32), np.empty(_TILE, F32)
    acc, best, sums = np.empty((rows, dim), F32), np.empty(rows, F32), np.empty(rows, F32)
    halves = np.empty(out.shape[1], F32)
    for task in range(begin, end):
        s, head = chosen[task // parts], (task % parts) * heads_at_once
        heads = min(heads_at_once, kv_heads - head)
        for row in range(starts[s], starts[s + 1]):
            queries = q[row, : out.shape[1] * dim].reshape(out.shape[1], dim)
            for g in range(head * group, (head + heads) * group):
                halves[g] = _HALF * queries[g].sum()
            visible = contexts[s] - (starts[s + 1] - 1 - row)
            acc[:], best[:], sums[:] = F32(0.0), F32(-np.inf), F32(0.0)
            for first in range(0, visible, _TILE):
                count = min(_TILE, visible - first)
                _products(
                    queries, halves, kv[0], kv_scales[0], tables[s], scale, head, heads, first,
                    count, scores,
                )  # fmt: skip
                _rescale(scores, power, heads * group, count, best, sums, acc)
                _add_values(
                    scores, kv[1], kv_scales[1], tables[s], group, head, heads, first, count, acc
                )
            for g in range(heads * group):
                for c in range(dim):
                    out[row, head * group + g, c] = acc[g, c] / sums[g]


@job_body
def _body(address: Any) -> None:
    """Run :func:`_attend` for this thread's pieces of a job of :func:`attend`."""
    job = numba.carray(address, (torch_threads.MAX_ENTRIES,))
    q, kv, scales = matrix(job, 4, F32), layer(job, 7, _I8), cube(job, 13, F32)
    out, tables, contexts = cube(job, 17, F32), matrix(job, 21, I32), vector(job, 24, I32)
    starts, chosen, scale = vector(job, 26, I32), vector(job, 28, I32), vector(job, 30, F32)[0]
    try:
        begin, end = next_piece(job)
        while begin >= 0:
            _attend(q, kv, scales, out, tables, contexts, starts, chosen, scale, job[3], begin, end)
            begin, end = next_piece(job)
    except Exception:
        job[2] = FAILED  # a C function cannot raise


def attend(
    q: torch.Tensor, kv: QuantizedKV, out: torch.Tensor, flat: FlatSequences,
    chosen: torch.Tensor, scale: float,
) -> None:  # fmt: skip
    """Fill the rows of ``out`` that belong to the ``chosen`` sequences (int32 indices).

    ``q`` and ``out`` are [tokens, heads, head_dim]; ``scale`` multiplies the scores.
    """
    assert kv.scales is not None
    run_tasks(_body, q, (kv.values, kv.scales, out), kv.shape, flat, chosen, scale)
