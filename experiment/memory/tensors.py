"""Memory figures read inside the arm's process: its tensors and torch's allocator."""

from __future__ import annotations

import ctypes
import gc
import importlib
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import psutil

from experiment.events import Channel, Reading, Scope, Stage
from experiment.memory.figure import MemoryFigure
from experiment.text.messages import message

if TYPE_CHECKING:
    import torch


def storage_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the storages of ``tensors``; each storage counts once, in full."""
    sizes: dict[tuple[str, int], int] = {}
    for tensor in tensors:
        if tensor.is_mkldnn:  # packed for oneDNN: torch exposes no storage
            ops: Any = importlib.import_module("torch").ops.mkldnn
            sizes["cpu", ops.data_ptr(tensor)] = ops._nbytes(tensor)
            continue
        storage = tensor.untyped_storage()
        # Empty storages share the address 0.
        if storage.nbytes():
            sizes[str(tensor.device), storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())


def torch_readings(
    arm: str, stage: Stage | None, request: int | None, device: str
) -> list[Reading]:
    """Bytes allocated and reserved by torch's allocator, and used on the device.

    On the CPU torch does not count them (its CUDA functions return 0). Both are None with a reason,
    and there is no device figure.
    """
    if device.startswith("cuda"):
        figures = _cuda_figures(device)
    else:
        none = MemoryFigure(None, message("memory.torch_cpu"))
        figures = {Channel.TORCH_ALLOCATED: none, Channel.TORCH_RESERVED: none}
    return [
        _reading(arm, channel, figure, stage, request, device)
        for channel, figure in figures.items()
    ]


def reset_torch_peaks(device: str) -> None:
    """Reset the peaks of torch's CUDA allocator; no effect on the CPU."""
    torch: Any = importlib.import_module("torch")
    if device.startswith("cuda") and torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats(device)


def slack_reading(arm: str, stage: Stage, device: str) -> Reading:
    """Bytes that were freed and are kept by the allocator.

    On CUDA: reserved by torch and not allocated. On the CPU: the decrease in RSS when the C library
    is asked to return free memory, which it then has done.
    """
    figure = _cuda_slack(device) if device.startswith("cuda") else _heap_slack()
    return _reading(arm, Channel.ALLOCATOR_SLACK, figure, stage, None, device)


def _reading(
    arm: str, channel: Channel, figure: MemoryFigure, stage: Stage | None, request: int | None,
    device: str,
) -> Reading:  # fmt: skip
    return Reading(
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


def trim() -> None:
    """Return freed memory: Python's garbage, torch's CUDA cache, the C library's heap.

    Otherwise freed blocks stay in the process and look allocated.
    """
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    _trim_heap()


# Torch's counters on CUDA, and the functions that return them.
_COUNTERS = {
    Channel.TORCH_ALLOCATED: "memory_allocated",
    Channel.TORCH_RESERVED: "memory_reserved",
    Channel.TORCH_ALLOCATED_PEAK: "max_memory_allocated",
    Channel.TORCH_RESERVED_PEAK: "max_memory_reserved",
}


def _cuda_figures(device: str) -> dict[Channel, MemoryFigure]:
    # Imported dynamically: torch has no types for some of these functions.
    cuda: Any = importlib.import_module("torch").cuda
    # Before CUDA is initialised the counters are 0, and a query would initialise it.
    if not cuda.is_available() or not cuda.is_initialized():
        key = "memory.cuda_not_started" if cuda.is_available() else "memory.cuda_missing"
        unknown = MemoryFigure(None, message(key))
        return dict.fromkeys((*_COUNTERS, Channel.CUDA_MEM_GET_INFO), unknown)
    free, total = cuda.mem_get_info(device)
    counters = {
        channel: MemoryFigure(getattr(cuda, name)(device)) for channel, name in _COUNTERS.items()
    }
    return counters | {Channel.CUDA_MEM_GET_INFO: MemoryFigure(total - free, total_bytes=total)}


def _cuda_slack(device: str) -> MemoryFigure:
    figures = _cuda_figures(device)
    held, used = figures[Channel.TORCH_RESERVED], figures[Channel.TORCH_ALLOCATED]
    if held.bytes is None or used.bytes is None:
        return held
    return MemoryFigure(held.bytes - used.bytes)


def _heap_slack() -> MemoryFigure:
    gc.collect()  # memory of Python's garbage is not slack of the C library
    process = psutil.Process()
    before = process.memory_info().rss
    if not _trim_heap():
        return MemoryFigure(None, message("memory.not_this_os"))
    # Ignore pages that were allocated meanwhile.
    return MemoryFigure(max(0, before - process.memory_info().rss))


def _trim_heap() -> bool:
    """Ask the C library to return free memory; False if it has no such function."""
    if hasattr(psutil, "heap_trim"):
        psutil.heap_trim()
        return True
    # Only glibc has this function.
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    malloc_trim = getattr(library, "malloc_trim", None)
    if malloc_trim is None:
        return False
    malloc_trim(0)
    return True
