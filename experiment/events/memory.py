"""Events of measuring memory and load: stages, readings, background load."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from experiment.events.base import ArmEvent, EventBase, Int, Name
from experiment.text.messages import Message


class Stage(StrEnum):
    """Moments at which every memory channel is read while the arm is paused."""

    START = "start"  # process started, libraries imported, nothing loaded
    LOADED = "loaded"  # weights on the device
    CACHE_READY = "cache_ready"  # KV cache reserved, nothing computed
    REQUEST_DONE = "request_done"  # one request finished
    LAST_STEP = "last_step"  # after the last executed step, before anything is released
    RELEASED = "released"  # KV cache and weights released


class Channel(StrEnum):
    """Source of a memory figure."""

    FORMULA = "formula"
    TENSORS = "tensors"
    TORCH_ALLOCATED = "torch.allocated"
    TORCH_RESERVED = "torch.reserved"
    TORCH_ALLOCATED_PEAK = "torch.allocated_peak"  # since the cache was reserved; before: ever
    TORCH_RESERVED_PEAK = "torch.reserved_peak"
    WEIGHTS = "weights"  # storages of parameters and buffers, each once
    ALLOCATOR_SLACK = "allocator.slack"  # freed, but kept by torch's allocator or the C library
    STATIC_INPUTS = "static_inputs"  # on a GPU, of an engine that reserves them with its cache
    NVML_PROCESS = "nvml.process"
    NVML_DEVICE = "nvml.device"
    CUDA_MEM_GET_INFO = "cuda.mem_get_info"
    RSS = "process.rss"
    USS = "process.uss"
    PSS = "process.pss"
    HIGH_WATER = "process.hwm"  # of the root process only, since HighWaterReset
    SYSTEM = "system.used"
    POISON = "poison"


class Scope(StrEnum):
    """Coverage of a memory figure."""

    TENSOR = "tensor"
    PROCESS = "process"
    TREE = "tree"
    DEVICE = "device"


class StageEntered(ArmEvent):
    """The arm is paused at ``stage``; readings with the same arm and stage follow."""

    event: Literal["stage"] = "stage"
    stage: Stage
    step: Int | None = None
    request: Int | None = None


class Reading(EventBase):
    """One memory figure: bytes, or None and the reason.

    ``stage`` is None for samples taken while the arm runs.
    """

    event: Literal["reading"] = "reading"
    arm: Name | None
    channel: Channel
    scope: Scope
    bytes: Int | None
    reason: Message | None = None
    stage: Stage | None = None
    request: Int | None = None
    device: str | None = None
    total_bytes: Int | None = None


class Baseline(ArmEvent):
    """Device memory in use before the arm, after it had settled; deltas are relative to it.

    ``bytes`` is the last reading of ``channel`` for the whole device: NVML on CUDA, system memory
    on the CPU. ``settled`` is False if it was still changing at the time limit, or unreadable.
    ``foreign`` is the number of other processes on the GPU.
    """

    event: Literal["baseline"] = "baseline"
    channel: Channel
    bytes: Int | None
    reason: Message | None = None
    settled: bool
    waited_s: float
    foreign: Int | None
    foreign_reason: Message | None = None


class ForeignProcesses(ArmEvent):
    """Number of other processes on the GPU, before and after the arm. On CUDA only.

    ``reason``: why a count is None.
    """

    event: Literal["foreign_processes"] = "foreign_processes"
    before: Int | None
    after: Int | None
    reason: Message | None = None


class Usage(ArmEvent):
    """Utilisation of CPU and GPU since the previous event of this kind, about 250 ms.

    The first interval of a turn starts with the turn; the last one is shorter.

    ``cpu_cores`` is CPU time of the arm's process tree divided by wall time: 2.0 is two busy cores.
    ``others_cores`` is the same for all other processes except the runner, on the CPUs that the run
    may use; rounding can make it slightly negative. ``gpu_share`` is the share of the driver's
    sampling period (up to 1 s) in which a kernel ran, ``gpu_memory_share`` that in which GPU memory
    was read or written. Both are 0 to 1, for the whole device. ``reason``, ``others_reason`` and
    ``gpu_reason`` say why a value is None. Older records have no ``others_cores``.
    """

    event: Literal["usage"] = "usage"
    cpu_cores: float | None
    gpu_share: float | None
    gpu_memory_share: float | None
    others_cores: float | None = None
    reason: Message | None = None
    others_reason: Message | None = None
    gpu_reason: Message | None = None


class SamplerCost(ArmEvent):
    """CPU seconds that monitoring the arm cost the runner, and the monitored time."""

    event: Literal["sampler_cost"] = "sampler_cost"
    cpu_s: float
    wall_s: float


class HighWaterReset(ArmEvent):
    """The high-water mark counts from now on; with a ``reason``, from the process start."""

    event: Literal["high_water_reset"] = "high_water_reset"
    reason: Message | None = None
