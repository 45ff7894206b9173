"""Captures that need no GPU, and a kernel of plain tensor operations for what they capture."""

from __future__ import annotations

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from experiment.engine.attention.kernels import torch_kernel
from experiment.engine.cuda.decode_graphs import Work
from experiment.engine.cuda.static_decode import StaticInputs
from experiment.engine.quantized import LayerKV, QuantizedKV, to_blocks
from experiment.engine.step_inputs import StepInputs


def call_again(work: Work) -> Work:
    """Replaying runs the work's Python once more."""
    work()
    return work


def traced(work: Work) -> Work:
    """Replaying repeats the tensor operations of one run, as a CUDA graph does.

    Whatever Python read or decided while it was captured is frozen; the tensors are the same.
    """
    work()
    graph = make_fx(work)()

    def replay() -> None:
        graph()

    return replay


def flat_kernel(q: torch.Tensor, kv: LayerKV, inputs: StepInputs, scale: float) -> torch.Tensor:
    """Attention of static decoding rows from the flat tensors alone; other steps by torch."""
    if not isinstance(inputs, StaticInputs):
        return torch_kernel(q, kv, inputs, scale)
    if isinstance(kv, QuantizedKV):
        kv = to_blocks(kv, q.dtype)
    tables, contexts, _ = inputs.flat
    rows, width = tables.shape
    _, _, heads, size, dim = kv.shape
    picked = kv[:, tables.long()].permute(0, 1, 3, 2, 4, 5).reshape(2, rows, heads, -1, dim)
    keys, values = picked.repeat_interleave(q.shape[1] // heads, 2).unbind(0)
    seen = torch.arange(width * size, device=q.device) < contexts[:, None]
    scores = torch.einsum("rhd,rhkd->rhk", q, keys) * scale
    weights = scores.masked_fill(~seen[:, None], float("-inf")).softmax(-1)
    values = values.masked_fill(~seen[:, None, :, None], 0.0)
    out = torch.einsum("rhk,rhkd->rhd", weights, values)
    return out.masked_fill((contexts == 0)[:, None, None], 0.0)
