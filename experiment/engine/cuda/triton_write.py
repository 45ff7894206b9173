"""Write a step's keys and values into their slots, with one launch per layer.

    token           0        1        2        3
    slot blocks     7        2       -1       -1        -1: dropped, a padding row of a graph
    slot offsets    3        0        0        0
                    │        │
                 K and V into block 7, slot 3, of every KV head

A dropped row is neither read nor written, so that padding needs no block.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from experiment.engine.cuda.triton_tile import kernel
from experiment.engine.step_inputs import StepInputs


def write(kv: torch.Tensor, inputs: StepInputs, keys: torch.Tensor, values: torch.Tensor) -> None:
    """Write keys and values, each [tokens, kv_heads, head_dim], into one layer of the pool.

    ``kv`` is [2, blocks, kv_heads, block_size, head_dim], contiguous.
    """
    _, _, kv_heads, size, dim = kv.shape
    if keys.stride() != values.stride() or keys.stride(2) != 1:
        keys, values = keys.contiguous(), values.contiguous()
    _write[(keys.shape[0],)](
        kv[0], kv[1], keys, values, inputs.slot_blocks, inputs.slot_offsets,
        keys.stride(0), keys.stride(1),
        kv_heads, size, dim, triton.next_power_of_2(kv_heads * dim), num_warps=4,
    )  # fmt: skip


@kernel("token_stride", "head_stride")
def _write(
    key_pool, value_pool, keys, values, slot_blocks, slot_offsets, token_stride, head_stride,
    KV_HEADS: tl.constexpr, SIZE: tl.constexpr, DIM: tl.constexpr, PAD: tl.constexpr,
):  # fmt: skip
    """All heads of one token."""
    token = tl.program_id(0).to(tl.int64)
    block = tl.load(slot_blocks + token)
    if block < 0:
        return
    offset = tl.load(slot_offsets + token)
    number = tl.arange(0, PAD)
    mask = number < KV_HEADS * DIM
    head, dim = number // DIM, number % DIM
    source = token * token_stride + head * head_stride + dim
    place = ((block * KV_HEADS + head) * SIZE + offset) * DIM + dim
    tl.store(key_pool + place, tl.load(keys + source, mask=mask), mask=mask)
    tl.store(value_pool + place, tl.load(values + source, mask=mask), mask=mask)
