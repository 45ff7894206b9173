"""Putting new keys and values into their slots on the CPU, compiled by Numba.

    keys of the step, as the model leaves them        one layer of the pool
    token t, head h: dim numbers in a row     ──►     [block of t, h, offset of t]: dim numbers

Torch's indexed assignment goes through every number's index; here each head of a token is one
copy of consecutive numbers.
"""

from __future__ import annotations

from typing import Any

import torch

from experiment.engine.cpu_kernel import Floats, Ints, _compile


@_compile(
    "void(float32[::1], int64, int64, float32[:,:,:,::1], int64[::1], int64[::1])", {"contract"}
)
def _write(
    rows: Floats, token_stride: int, head_stride: int, slots: Floats, blocks: Ints, offsets: Ints
) -> None:
    for token in range(blocks.shape[0]):
        for head in range(slots.shape[1]):
            start = token * token_stride + head * head_stride
            for c in range(slots.shape[3]):
                slots[blocks[token], head, offsets[token], c] = rows[start + c]


def write(
    kv: torch.Tensor,
    blocks: torch.Tensor,
    offsets: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
) -> None:
    """Put rows [tokens, kv_heads, head_dim] into [2, blocks, kv_heads, block_size, head_dim]."""
    halves, where = kv.numpy(), (blocks.numpy(), offsets.numpy())
    for half, rows in ((0, keys), (1, values)):
        _write(*_flat(rows), halves[half], *where)


def _flat(rows: torch.Tensor) -> tuple[Any, int, int]:
    """The memory from the first to the last number, and the strides of tokens and heads.

    Keys are often parts of a wider tensor; read so, they need not be copied out of it.
    """
    if rows.stride(2) != 1:
        rows = rows.contiguous()
    tokens, heads, dim = rows.shape
    length = (tokens - 1) * rows.stride(0) + (heads - 1) * rows.stride(1) + dim
    return rows.as_strided((length,), (1,)).numpy(), rows.stride(0), rows.stride(1)
