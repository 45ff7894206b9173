"""Which attention kernel runs here: the fastest, or why not that one."""

from __future__ import annotations

import torch

from experiment.engine.attention import kernels
from experiment.engine.cuda.triton_support import LayerShape, reason_against
from experiment.text.messages import Message, message


def choose_kernel(
    name: str, device: torch.device, dtype: torch.dtype, shape: LayerShape | None = None
) -> str:
    """Resolve ``auto`` to the fastest kernel that runs here; any other name is taken as it is."""
    if name != "auto":
        return name
    if device.type == "cuda":
        return "torch" if reason_against(device, shape) else "triton"
    compiled = device.type == "cpu" and dtype == torch.float32
    return "numba" if compiled and reason_against_compiled() is None else "torch"


def reason_against_compiled() -> Message | None:
    """Why the compiled kernel of the CPU cannot run here; None where it can."""
    try:
        kernels.cpu_kernel_module()
    except ImportError as error:
        return message("kernel.no_numba", detail=str(error))
    return None
