"""Choose the fastest available attention kernel."""

from __future__ import annotations

import torch

from experiment.engine.attention import kernels
from experiment.engine.cuda.triton_support import LayerShape, reason_against
from experiment.text.messages import Message, message


def choose_kernel(
    name: str, device: torch.device, dtype: torch.dtype, shape: LayerShape | None = None
) -> str:
    """Resolve ``auto`` to the fastest available kernel; other names are returned unchanged."""
    if name != "auto":
        return name
    if device.type == "cuda":
        return "torch" if reason_against(device, shape) else "triton"
    compiled = device.type == "cpu" and dtype == torch.float32
    return "numba" if compiled and reason_against_compiled() is None else "torch"


def reason_against_compiled() -> Message | None:
    """Why the CPU's compiled kernel is not available; None if it is."""
    try:
        kernels.cpu_kernel_module()
    except ImportError as error:
        return message("kernel.no_numba", detail=str(error))
    return None
