"""Events of measuring memory and load: stages, readings, what the machine did meanwhile."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from experiment.events.base import EventBase, Int, Name
from experiment.text.messages import Message


class Stage(StrEnum):
    """Moments of an arm at which every memory channel is read while the arm stands still."""

    START = "start"  # process up, libraries imported, nothing loaded
    LOADED = "loaded"  # weights on the device
    CACHE_READY = "cache_ready"  # KV cache reserved, nothing computed
    REQUEST_DONE = "request_done"  # one request has ended
    LAST_STEP = "last_step"  # after the last step that ran, before anything is released
    RELEASED = "released"  # KV cache and weights given back


class Channel(StrEnum):
    """Where a memory figure comes from."""

    FORMULA = "formula"
    TENSORS = "tensors"
    TORCH_ALLOCATED = "torch.allocated"
    TORCH_RESERVED = "torch.reserved"
    TORCH_ALLOCATED_PEAK = "torch.allocated_peak"  # since the cache was there; before: ever
    TORCH_RESERVED_PEAK = "torch.reserved_peak"
    WEIGHTS = "weights"  # storages of parameters and buffers, each once
    ALLOCATOR_SLACK = "allocator.slack"  # freed and kept by torch's allocator or the C library
    STATIC_INPUTS = "static_inputs"  # on a GPU, of an engine that reserves them with its cache
    NVML_PROCESS = "nvml.process"
    NVML_DEVICE = "nvml.device"
    CUDA_MEM_GET_INFO = "cuda.mem_get_info"
    RSS = "process.rss"
    USS = "process.uss"
    PSS = "process.pss"
    HIGH_WATER = "process.hwm"  # of the root alone, since HighWaterReset
    SYSTEM = "system.used"
    POISON = "poison"


class Scope(StrEnum):
    """What a memory figure is about."""

    TENSOR = "tensor"
    PROCESS = "process"
    TREE = "tree"
    DEVICE = "device"


class StageEntered(EventBase):
    """The arm stands still at ``stage``; readings with the same arm and stage follow."""

    event: Literal["stage"] = "stage"
    arm: Name
    stage: Stage
    step: Int | None = None
    request: Int | None = None


class Reading(EventBase):
    """One memory figure: bytes, or None and the reason. Never 0 for what is unknown.

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


class Baseline(EventBase):
    """What the device held before the arm, once it had settled: deltas count from here.

    ``bytes`` is the last reading of ``channel``, the whole device's: NVML's on CUDA, system
    memory on the CPU. ``settled`` is False when it went on moving for as long as was waited, or
    could not be read. ``foreign`` is how many processes on the GPU are not ours.
    """

    event: Literal["baseline"] = "baseline"
    arm: Name
    channel: Channel
    bytes: Int | None
    reason: Message | None = None
    settled: bool
    waited_s: float
    foreign: Int | None
    foreign_reason: Message | None = None


class ForeignProcesses(EventBase):
    """Processes on the GPU that are not ours, before the arm and after it. On CUDA only.

    ``reason`` says why a count is None.
    """

    event: Literal["foreign_processes"] = "foreign_processes"
    arm: Name
    before: Int | None
    after: Int | None
    reason: Message | None = None


class Usage(EventBase):
    """How busy processor and GPU were since the last event of this kind, some 250 ms.

    Behind a turn of others it is since the arm's own began, and shorter where that ends.

    ``cpu_cores`` is the CPU time of the arm's process tree over wall time; 2.0 is two cores all
    the time. ``others_cores`` is that of the cores which the run may use, without the
    tree's and the runner's; by rounding it may be a little below 0 where there is nothing.
    ``gpu_share`` is the part of the driver's own sampling period (up to 1 s) in which a
    kernel ran, ``gpu_memory_share`` that in which GPU memory was read or written, from 0 to 1,
    both of the whole device. ``reason`` says why the CPU's figure is None, ``others_reason`` why
    that of others is, None too in records of before it was taken, ``gpu_reason`` why the GPU's are.
    """

    event: Literal["usage"] = "usage"
    arm: Name
    cpu_cores: float | None
    gpu_share: float | None
    gpu_memory_share: float | None
    others_cores: float | None = None
    reason: Message | None = None
    others_reason: Message | None = None
    gpu_reason: Message | None = None


class SamplerCost(EventBase):
    """CPU seconds that watching the arm cost the runner, and how long it was watched."""

    event: Literal["sampler_cost"] = "sampler_cost"
    arm: Name
    cpu_s: float
    wall_s: float


class HighWaterReset(EventBase):
    """The high-water mark counts from now, not from the process's start; a reason: it does not."""

    event: Literal["high_water_reset"] = "high_water_reset"
    arm: Name
    reason: Message | None = None
