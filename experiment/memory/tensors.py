"""Figures that only the process of the arm can take: its tensors and torch's allocator."""

from __future__ import annotations

import ctypes
import gc
import importlib
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import psutil

from experiment.events import Channel, Reading, Scope, Stage
from experiment.memory.figure import Figure, missing

if TYPE_CHECKING:
    import torch


def storage_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the storages behind ``tensors``; views of one storage count once, whole."""
    sizes: dict[tuple[str, int], int] = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        # Empty storages share the address 0 and hold nothing.
        if storage.nbytes():
            sizes[str(tensor.device), storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())


def torch_readings(
    arm: str, stage: Stage | None, request: int | None, device: str
) -> list[Reading]:
    """Bytes that torch's allocator has handed out and holds, and what the device has in use.

    On the CPU torch keeps no such figures (its CUDA functions answer 0 there), so both are None
    with the reason, and there is no figure of the device.
    """
    if device.startswith("cuda"):
        figures = _cuda_figures(device)
    else:
        none = missing("memory.torch_cpu")
        figures = {Channel.TORCH_ALLOCATED: none, Channel.TORCH_RESERVED: none}
    return [
        Reading(
            arm=arm,
            channel=channel,
            scope=Scope.DEVICE if channel is Channel.CUDA_MEM_GET_INFO else Scope.PROCESS,
            bytes=figure.bytes,
            reason=figure.reason,
            stage=stage,
            request=request,
            device=device,
            total_bytes=figure.total_bytes,
        )
        for channel, figure in figures.items()
    ]


def trim() -> None:
    """Give back what was freed: Python's garbage, torch's CUDA cache, the C library's heap.

    Without it freed blocks stay in the process and look like memory that is held.
    """
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    _trim_heap()


def _cuda_figures(device: str) -> dict[Channel, Figure]:
    # Imported as a module object: torch leaves some of these functions without types.
    torch: Any = importlib.import_module("torch")
    channels = (Channel.TORCH_ALLOCATED, Channel.TORCH_RESERVED, Channel.CUDA_MEM_GET_INFO)
    if not torch.cuda.is_available():
        return dict.fromkeys(channels, missing("memory.cuda_missing"))
    # Before CUDA has started the counters answer 0, and asking the device would start it.
    if not torch.cuda.is_initialized():
        return dict.fromkeys(channels, missing("memory.cuda_not_started"))
    free, total = torch.cuda.mem_get_info(device)
    return {
        Channel.TORCH_ALLOCATED: Figure(torch.cuda.memory_allocated(device)),
        Channel.TORCH_RESERVED: Figure(torch.cuda.memory_reserved(device)),
        Channel.CUDA_MEM_GET_INFO: Figure(total - free, total_bytes=total),
    }


def _trim_heap() -> None:
    if hasattr(psutil, "heap_trim"):
        psutil.heap_trim()
        return
    if sys.platform != "linux":
        return
    # Other C libraries than glibc have no such function.
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
