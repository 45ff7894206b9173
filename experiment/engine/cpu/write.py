"""Putting new keys and values into their slots on the CPU, compiled by Numba.

    keys of the step, as the model leaves them        one layer of the pool
    token t, head h: dim numbers in a row     ──►     [block of t, h, offset of t]: dim numbers

Torch's indexed assignment goes through every number's index; here each head of a token is one
copy of consecutive numbers.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch

from experiment.engine.cpu import torch_threads
from experiment.engine.cpu.compiled import F32, Floats, Ints, jit, job_body, run_job, threads_for
from experiment.engine.cpu.torch_threads import BROKEN, entry, layer, make_job, next_piece, vector

_L = np.int64


@jit(
    "void(float32[::1], int64, int64, float32[:,:,:,::1], int64[::1], int64[::1], int64, int64)",
    {"contract"},
)
def _write(
    rows: Floats, token_stride: int, head_stride: int, slots: Floats, blocks: Ints, offsets: Ints,
    begin: int, end: int,
) -> None:  # fmt: skip
    for token in range(begin, end):
        for head in range(slots.shape[1]):
            start = token * token_stride + head * head_stride
            for c in range(slots.shape[3]):
                slots[blocks[token], head, offsets[token], c] = rows[start + c]


@job_body
def _body(address: Any) -> None:
    """:func:`_write` of keys and values, for every piece that this thread gets."""
    job = numba.carray(address, (torch_threads.LONGEST,))
    keys, values, slots = vector(job, 7, F32), vector(job, 9, F32), layer(job, 11, F32)
    blocks, offsets = vector(job, 17, _L), vector(job, 19, _L)
    try:
        begin, end = next_piece(job)
        while begin >= 0:
            _write(keys, job[3], job[4], slots[0], blocks, offsets, begin, end)
            _write(values, job[5], job[6], slots[1], blocks, offsets, begin, end)
            begin, end = next_piece(job)
    except Exception:
        job[2] = BROKEN  # nobody sees what leaves a C function


def write(
    kv: torch.Tensor,
    blocks: torch.Tensor,
    offsets: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
) -> None:
    """Put rows [tokens, kv_heads, head_dim] into [2, blocks, kv_heads, block_size, head_dim]."""
    threads, pieces = threads_for(2 * keys.numel(), len(blocks))
    read = [flat(rows) for rows in (keys, values)]  # held until all threads have finished
    strides = [stride for rows in read for stride in rows.stride()[:2]]
    spans = [(rows.data_ptr(), span(rows)) for rows in read]
    job = make_job(pieces, len(blocks), strides, [*spans, *map(entry, (kv, blocks, offsets))])
    run_job(_body, job, threads)


def flat(rows: torch.Tensor) -> torch.Tensor:
    """Rows [tokens, kv_heads, head_dim] whose heads are each one run of memory.

    Keys are often parts of a wider tensor; read so, they need not be copied out of it.
    """
    return rows if rows.stride(2) == 1 else rows.contiguous()


def span(rows: torch.Tensor) -> int:
    """How many numbers lie from the first to the last, both included."""
    tokens, heads, dim = rows.shape
    return (tokens - 1) * rows.stride(0) + (heads - 1) * rows.stride(1) + dim
