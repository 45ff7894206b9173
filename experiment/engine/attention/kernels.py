"""Attention kernels over block tables, with the same signature and result.

    q    [tokens, heads, head_dim]      packed queries of the step, perhaps a view of a wider tensor
    kv   [2, blocks, kv_heads, block_size, head_dim]      one layer of the pool
    out  [tokens, heads, head_dim]      contiguous

``kv`` is a tensor or a :class:`QuantizedKV`. The step's keys and values are in the pool before a
kernel runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from importlib import import_module
from math import isqrt
from types import ModuleType

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own spelling

from experiment.engine.quantized import (
    LayerKV,
    QuantizedKV,
    from_blocks,
    take,
    to_blocks,
)
from experiment.engine.step_inputs import SDPA_FROM, PackedSequence, StepInputs, build_inputs
from experiment.files.code_cache import code_cache, numba_cache
from kvsim.core.step import Chunk, StepPlan

# Computes attention of one layer for one packed step: queries, keys and values, the step, and the
# factor of the scores.
Kernel = Callable[[torch.Tensor, LayerKV, StepInputs, float], torch.Tensor]


def gather(
    kv: LayerKV, sequence: PackedSequence, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gather keys and values of one request in logical order, each [kv_heads, context, head_dim].

    Quantized values are converted to ``dtype``.
    """
    _, _, heads, block_size, dim = kv.shape
    slots = sequence.table.numel() * block_size
    if isinstance(kv, QuantizedKV):
        chosen = to_blocks(take(kv, sequence.table), dtype).permute(0, 2, 1, 3, 4)
    else:
        by_head = kv.permute(0, 2, 1, 3, 4)  # [2, kv_heads, blocks, block_size, head_dim]
        chosen = by_head.index_select(2, sequence.table)
    rows = chosen.reshape(2, heads, slots, dim)
    keys, values = rows[:, :, : sequence.context].unbind(0)
    return keys, values


def torch_kernel(q: torch.Tensor, kv: LayerKV, inputs: StepInputs, scale: float) -> torch.Tensor:
    """Gather each request's blocks, then use torch's scaled dot product attention; any device."""
    out = q.new_empty(q.shape)
    for sequence in inputs.sequences:
        _attend_gathered(q, kv, sequence, scale, out)
    return out


def numba_kernel(q: torch.Tensor, kv: LayerKV, inputs: StepInputs, scale: float) -> torch.Tensor:
    """Read blocks in place; large prompt chunks are gathered, as by ``torch_kernel``.

    Falls back to ``torch_kernel`` for other devices and for half precision and float8, for which
    CPUs lack arithmetic and Numba lacks types.
    """
    fp8 = isinstance(kv, QuantizedKV) and kv.scales is None
    if q.device.type != "cpu" or q.dtype != torch.float32 or fp8:
        return torch_kernel(q, kv, inputs, scale)
    out = q.new_empty(q.shape)
    chosen, large = inputs.by_size
    for sequence in large:
        _attend_gathered(q, kv, sequence, scale, out)
    if chosen.numel():
        name = "attention_kernel_int8" if isinstance(kv, QuantizedKV) else "attention_kernel"
        cpu_kernel_module(name).attend(q, kv, out, inputs.flat, chosen, scale)
    return out


def triton_kernel(q: torch.Tensor, kv: LayerKV, inputs: StepInputs, scale: float) -> torch.Tensor:
    """Read blocks in place on a GPU; any dtype."""
    return triton_module().attend(q, kv, inputs, scale)  # type: ignore[no-any-return]


def reference_kernel(
    q: torch.Tensor, kv: LayerKV, inputs: StepInputs, scale: float
) -> torch.Tensor:
    """Compute attention by definition, query by query in float64; for tests."""
    out = q.new_empty(q.shape)
    group = q.shape[1] // kv.shape[2]
    for sequence in inputs.sequences:
        gathered = gather(kv, sequence, torch.float64)
        keys, values = (x.double().repeat_interleave(group, 0) for x in gathered)
        start = sequence.context - sequence.queries
        for i in range(sequence.queries):
            row = sequence.rows.start + i
            visible = start + i + 1
            scores = torch.einsum("hd,hkd->hk", q[row].double(), keys[:, :visible]) * scale
            weights = scores.softmax(-1)
            out[row] = torch.einsum("hk,hkd->hd", weights, values[:, :visible]).to(q.dtype)
    return out


def _attend_gathered(
    q: torch.Tensor, kv: LayerKV, sequence: PackedSequence, scale: float, out: torch.Tensor
) -> None:
    """Fill the rows of ``out`` that belong to ``sequence``."""
    keys, values = gather(kv, sequence, q.dtype)
    queries = q[sequence.rows].transpose(0, 1)  # [heads, queries, head_dim]
    attended = F.scaled_dot_product_attention(
        queries[None],
        keys[None],
        values[None],
        attn_mask=_causal_mask(sequence, q.device),
        is_causal=sequence.queries > 1 and sequence.queries == sequence.context,
        scale=scale,
        enable_gqa=q.shape[1] != kv.shape[2],
    )
    out[sequence.rows] = attended[0].transpose(0, 1)


def _causal_mask(sequence: PackedSequence, device: torch.device) -> torch.Tensor | None:
    """Mask of a chunk after earlier positions; None for one query or a first chunk."""
    if sequence.queries in (1, sequence.context):
        return None
    earlier = sequence.context - sequence.queries
    shape = (sequence.queries, sequence.context)
    return torch.ones(shape, dtype=torch.bool, device=device).tril(earlier)


@cache
def cpu_kernel_module(name: str = "attention_kernel") -> ModuleType:
    """Import a module of Numba kernels, only in the process that runs them."""
    # Numba reads the variable on import.
    os.environ.setdefault("NUMBA_CACHE_DIR", str(numba_cache()))
    return import_module(f"experiment.engine.cpu.{name}")


def triton_module() -> ModuleType:
    """Import the Triton kernels, only in the process that runs them."""
    # Triton reads the variable when it compiles.
    os.environ.setdefault("TRITON_CACHE_DIR", str(code_cache("triton")))
    return import_module("experiment.engine.cuda.triton_kernel")


def few_rows_module() -> ModuleType | None:
    """The module that multiplies few rows with packed weights; None if not available.

    Requires Numba, AVX-512 or AVX2, and correct output of the compiler.
    """
    try:
        module = cpu_kernel_module("panel_products")
    except Exception:  # Numba is missing or fails: oneDNN is used
        return None
    return module if module.usable() else None


KERNELS: dict[str, Kernel] = {
    "torch": torch_kernel,
    "numba": numba_kernel,
    "triton": triton_kernel,
    "reference": reference_kernel,
}


@torch.inference_mode()
def warm_up(
    name: str, device: torch.device, dtype: torch.dtype, kv_dtype: torch.dtype | None = None
) -> None:
    """Run one token and one prompt, so that everything is compiled and initialised.

    The prompt is long enough to be gathered for torch's attention. ``kv_dtype`` is that of a
    quantized pool.
    """
    for tokens in (1, isqrt(SDPA_FROM) + 1):
        plan = StepPlan(0, chunks=(Chunk(0, 0, tokens, True),))
        inputs = build_inputs(plan, {0: [0] * tokens}, {0: [0]}, tokens, device)
        ones = torch.ones(2, 1, 1, tokens, 8, dtype=dtype, device=device)
        kv = ones if kv_dtype is None else from_blocks(ones, kv_dtype)
        KERNELS[name](ones[0, 0].transpose(0, 1), kv, inputs, 1.0)
