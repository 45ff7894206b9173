"""Attention kernel that combines the Triton kernels for decoding and for chunks."""

from __future__ import annotations

import torch

from experiment.engine.cuda import triton_decode, triton_prefill, triton_rescale, triton_write
from experiment.engine.cuda.triton_tile import layer_of
from experiment.engine.quantized import LayerKV
from experiment.engine.step_inputs import StepInputs, build_inputs
from kvsim.core.step import Chunk, StepPlan

write, rescale = triton_write.write, triton_rescale.rescale


def attend(q: torch.Tensor, kv: LayerKV, inputs: StepInputs, scale: float) -> torch.Tensor:
    """Compute attention of one layer of a packed step, reading blocks in place.

    Sequences with one query use the decode kernel, others the prefill kernel.

    Args:
        q: [tokens, heads, head_dim].
        kv: [2, blocks, kv_heads, block_size, head_dim].
        inputs: the step.
        scale: multiplies the scores.

    Returns:
        [tokens, heads, head_dim].
    """
    q = q.contiguous()
    out = torch.empty_like(q)
    layer, flat = layer_of(kv), inputs.flat
    decoding = inputs.decoding
    if decoding.numel():
        triton_decode.decode(q, layer, flat, decoding, inputs.longest, scale, out)
    group, dim = q.shape[1] // layer.keys.shape[1], q.shape[2]
    queries = triton_prefill.queries_of(group, dim, q.element_size())
    tiles = inputs.tiles(queries)
    if tiles.numel():
        triton_prefill.prefill(q, layer, flat, tiles, queries, scale, out)
    return out


def alignment_of(kv: LayerKV) -> tuple[bool, ...]:
    """Which tensors of a layer are aligned to 16 bytes; Triton compiles a variant for each."""
    *tensors, _ = layer_of(kv)
    return tuple(tensor.data_ptr() % 16 == 0 for tensor in tensors)


def warm_up(kv: LayerKV, heads: int, dtype: torch.dtype) -> None:
    """Compile the kernels that a run launches for this layer and number of query heads.

    Reads block 0 and writes nothing.
    """
    device = layer_of(kv).keys.device
    _, _, kv_heads, _, dim = kv.shape
    plan = StepPlan(0, chunks=(Chunk(0, 0, 1, True), Chunk(1, 0, 2, True)))
    inputs = build_inputs(plan, {0: [0], 1: [0, 0]}, {0: [0], 1: [0, 0]}, kv.shape[3], device)
    q = torch.zeros((3, heads, dim), dtype=dtype, device=device)
    attend(q, kv, inputs, 1.0)
    # One split, and several with the combining kernel, are two variants.
    triton_decode.decode(
        q, layer_of(kv), inputs.flat, inputs.decoding, triton_decode.SPLIT + 1, 1.0, q.clone()
    )
    if isinstance(kv, torch.Tensor):
        inputs.slot_blocks.fill_(-1)
        rows = torch.zeros((3, kv_heads, dim), dtype=dtype, device=device)
        write(kv, inputs, rows, rows)
