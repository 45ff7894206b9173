"""Check whether the Triton kernels can run, without importing Triton if they cannot."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import NamedTuple

import torch

from experiment.engine.quantized import from_blocks
from experiment.engine.step_inputs import build_inputs
from experiment.text.errors import one_line
from experiment.text.messages import Message, message
from kvsim.core.step import Chunk, StepPlan

# Minimum compute capability supported by Triton.
MIN_CAPABILITY = (8, 0)


class LayerShape(NamedTuple):
    """Parameters for which kernels are compiled.

    Attributes:
        heads: query heads.
        dtype: dtype of the model.
        kv_dtype: dtype of the cache, if it differs.
    """

    heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype
    kv_dtype: torch.dtype | None = None


def reason_against(device: torch.device, shape: LayerShape | None = None) -> Message | None:
    """Why the Triton kernels cannot run on ``device``, or not this shape; None if they can."""
    if importlib.util.find_spec("triton") is None:
        return message("kernel.no_triton")
    try:
        from experiment.engine.cuda.triton_tile import interpreted
    except Exception as error:  # Triton is installed but broken
        return message("kernel.triton_fails", detail=one_line(error))
    if interpreted():
        if device.type == "cuda":  # slower than any other kernel, and not capturable
            return message("kernel.triton_fails", detail="TRITON_INTERPRET=1")
        return None
    if device.type != "cuda" or not torch.cuda.is_available():
        return message("kernel.no_gpu")
    return too_old(device) or _trial(str(device), shape)


def too_old(device: torch.device) -> Message | None:
    """Whether Triton does not support the GPU, as a reason; None if it does."""
    capability = torch.cuda.get_device_capability(device)
    if torch.version.hip is not None or capability >= MIN_CAPABILITY:
        return None
    least = ".".join(map(str, MIN_CAPABILITY))
    return message("kernel.old_gpu", found=".".join(map(str, capability)), least=least)


@cache
def _trial(device: str, shape: LayerShape | None) -> Message | None:
    """Compile both kernels and compare their results with torch's."""
    try:
        right = _agree(torch.device(device))
        if shape is not None:
            _launch(torch.device(device), shape)
    except Exception as error:  # Triton, the compiler and the driver may raise anything
        return message("kernel.triton_fails", detail=one_line(error))
    return None if right else message("kernel.triton_wrong")


@torch.inference_mode()
def _launch(device: torch.device, shape: LayerShape) -> None:
    """Compile and launch all kernels for a layer of this shape, which may exceed resources.

    Raises:
        Exception: from Triton or the driver, if shared memory is insufficient.
    """
    from experiment.engine.attention.kernels import triton_module

    heads, kv_heads, dim, size, dtype, kv_dtype = shape
    kv = torch.zeros((2, 1, kv_heads, size, dim), dtype=dtype, device=device)
    layer = kv if kv_dtype is None else from_blocks(kv, kv_dtype)
    triton_module().warm_up(layer, heads, dtype)


@torch.inference_mode()
def _agree(device: torch.device) -> bool:
    """Whether a chunk and a decode row agree with torch's attention."""
    from experiment.engine.attention.kernels import KERNELS

    plan = StepPlan(0, chunks=(Chunk(0, 0, 5, True), Chunk(1, 4, 1, True)))
    inputs = build_inputs(plan, {0: [0] * 5, 1: [0] * 5}, {0: [3, 0], 1: [1, 2]}, 4, device)
    q = torch.linspace(-2, 3, 6 * 2 * 16, device=device).sin().view(6, 2, 16)
    kv = torch.linspace(0, 40, 2 * 4 * 2 * 4 * 16, device=device).cos().view(2, 4, 2, 4, 16)
    ours = KERNELS["triton"](q, kv, inputs, 0.25)
    return torch.allclose(ours, KERNELS["torch"](q, kv, inputs, 0.25), atol=1e-3)
