"""Enlarge the scales of int8 blocks in place; blocks with an unchanged scale are not read.

    grid (written block, KV head, K or V)     old scale 1/16, new 1/4: shift each number by two
                                              old scale 1/16, new 1/16: done

A slab is a block of thousands of slots, of which a step writes one. Reading all of it in every step
would cost as much as attention.
"""

from __future__ import annotations

import torch
import triton.language as tl

from experiment.engine.cuda.triton_tile import kernel
from experiment.engine.quantized import POISON
from experiment.engine.step_inputs import StepInputs

# Numbers that a program shifts at once.
_TILE = 1024
_POISON = tl.constexpr(POISON)


def rescale(values: torch.Tensor, inputs: StepInputs, old: torch.Tensor, new: torch.Tensor) -> None:
    """Same as :func:`experiment.engine.quantized.rescale`; rows of padding are dropped.

    ``values`` is [2, blocks, kv_heads, block_size, head_dim], contiguous.
    """
    blocks = inputs.touched[0] if inputs.live is None else inputs.slot_blocks
    _, pool, kv_heads, size, dim = values.shape
    _rescale[(len(blocks), kv_heads, 2)](
        values, blocks, old.contiguous(), new.contiguous(), len(blocks), pool, size * dim,
        kv_heads, _TILE, num_warps=4,
    )  # fmt: skip


@kernel("count", "pool", "numbers")
def _rescale(
    values, blocks, old, new, count, pool, numbers, KV_HEADS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """All slots of one block and head."""
    row, head, half = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    block = tl.load(blocks + row)
    at = (half * count + row) * KV_HEADS + head
    before = tl.load(old + at).to(tl.int32, bitcast=True)
    after = tl.load(new + at).to(tl.int32, bitcast=True)
    if (block < 0) | (before == after):
        return
    shift = tl.minimum(tl.maximum((after >> 23) - (before >> 23), 0), 7)
    spoiled = (after & 0x7FFFFFFF) > 0x7F800000  # NaN
    start = values + ((half.to(tl.int64) * pool + block) * KV_HEADS + head) * numbers
    for first in range(0, numbers, TILE):
        place = first + tl.arange(0, TILE)
        mask = place < numbers
        number = tl.load(start + place, mask=mask, other=0)
        shifted = (number.to(tl.int32) >> shift).to(tl.int8)
        tl.store(
            start + place, tl.where((number == _POISON) | spoiled, _POISON, shifted), mask=mask
        )
