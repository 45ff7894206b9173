"""Choose the fastest available attention kernel."""

from __future__ import annotations

import torch

from experiment.engine.attention import kernels
from experiment.engine.cuda.triton_support import LayerShape, reason_against
from experiment.text.messages import Message, message


def choose_kernel(
    name: str, device: torch.device, dtype: torch.dtype, shape: LayerShape | None = None
) -> tuple[str, Message | None]:
    """Resolve ``auto`` to the fastest available kernel; other names are returned unchanged.

    The second value says why it is not the fastest one for such a device; None if it is.
    """
    if name != "auto":
        return name, None
    if device.type == "cuda":
        reason = reason_against(device, shape)
        return "torch" if reason else "triton", reason
    try:
        kernels.cpu_kernel_module()
    except ImportError as error:
        return "torch", message("kernel.no_numba", detail=str(error))
    return "numba" if dtype == torch.float32 and device.type == "cpu" else "torch", None
