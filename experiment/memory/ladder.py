"""The ladder of memory channels: which are usable, and their roles in this run.

CPU    tensors, formula, poison            exact, KV cache only
       process tree: RSS (primary)         all memory of the processes
       high-water mark                     peaks between samples
       system                              baseline: all processes together
CUDA   tensors, formula, poison
       torch: allocated, reserved          held by the allocator
       NVML per process (primary)          with context and kernels
       NVML or CUDA, whole device          primary if the channel above does not work
"""

from __future__ import annotations

import sys

from experiment.events import Channel, Scope
from experiment.machine.environment import ChannelStatus, DeviceKind, Machine, Role
from experiment.text.messages import Message, message

_GPU_SCOPES = {
    Channel.TORCH_ALLOCATED: Scope.PROCESS,
    Channel.TORCH_RESERVED: Scope.PROCESS,
    Channel.TORCH_ALLOCATED_PEAK: Scope.PROCESS,
    Channel.TORCH_RESERVED_PEAK: Scope.PROCESS,
    Channel.STATIC_INPUTS: Scope.TENSOR,
    Channel.NVML_PROCESS: Scope.TREE,
    Channel.NVML_DEVICE: Scope.DEVICE,
    Channel.CUDA_MEM_GET_INFO: Scope.DEVICE,
}
_OF_TENSORS = (Channel.TENSORS, Channel.POISON, Channel.WEIGHTS)
_HOST_SCOPES = {
    Channel.RSS: Scope.TREE,
    Channel.USS: Scope.TREE,
    Channel.PSS: Scope.TREE,
    Channel.HIGH_WATER: Scope.PROCESS,
    Channel.ALLOCATOR_SLACK: Scope.PROCESS,
    Channel.SYSTEM: Scope.DEVICE,
}
# Channels that are not cross-checked.
_ROLES: dict[Channel, Role] = {
    Channel.HIGH_WATER: "peak",
    Channel.TORCH_ALLOCATED_PEAK: "peak",
    Channel.TORCH_RESERVED_PEAK: "peak",
    Channel.ALLOCATOR_SLACK: "part",
    Channel.WEIGHTS: "part",
    Channel.STATIC_INPUTS: "part",
    Channel.SYSTEM: "baseline",
}
# Best first; the first usable one is the primary channel.
_PRIMARY: dict[DeviceKind, tuple[Channel, ...]] = {
    "cpu": (Channel.RSS,),
    "cuda": (
        Channel.NVML_PROCESS,
        Channel.NVML_DEVICE,
        Channel.CUDA_MEM_GET_INFO,
        Channel.TORCH_RESERVED,
    ),
}


def ladder(
    machine: Machine, device: DeviceKind, platform: str = sys.platform
) -> tuple[ChannelStatus, ...]:
    """All channels with their roles on ``device``, from most exact to coarsest.

    ``platform`` is a value of :data:`sys.platform`.
    """
    no_torch = None if machine.torch.version else message("memory.torch_missing")
    reasons: dict[Channel, Message | None] = {
        Channel.FORMULA: None,
        **dict.fromkeys(_OF_TENSORS, no_torch),
        **_gpu_reasons(machine, device),
        **{channel: _host_reason(channel, platform) for channel in _HOST_SCOPES},
    }
    candidates = (channel for channel in _PRIMARY[device] if reasons[channel] is None)
    primary = next(candidates, Channel.RSS)
    return tuple(
        ChannelStatus(
            channel=channel,
            scope=_GPU_SCOPES.get(channel) or _HOST_SCOPES.get(channel) or Scope.TENSOR,
            usable=reason is None,
            role=_role(channel, device, primary),
            reason=reason,
        )
        for channel, reason in reasons.items()
    )


def _role(channel: Channel, device: DeviceKind, primary: Channel) -> Role:
    if channel == primary:
        return "primary"
    if device == "cpu" and channel in _GPU_SCOPES:
        return "unused"
    return _ROLES.get(channel, "cross_check")


def _gpu_reasons(machine: Machine, device: DeviceKind) -> dict[Channel, Message | None]:
    nvml, cuda = machine.nvml, _cuda_reason(machine, device)
    # A CPU-only build of torch returns 0 instead of failing, so the device decides.
    return {
        Channel.TORCH_ALLOCATED: cuda,
        Channel.TORCH_RESERVED: cuda,
        Channel.TORCH_ALLOCATED_PEAK: cuda,
        Channel.TORCH_RESERVED_PEAK: cuda,
        Channel.STATIC_INPUTS: cuda,
        Channel.NVML_PROCESS: nvml.reason or _only_on_cuda(device) or nvml.process_reason,
        Channel.NVML_DEVICE: nvml.reason or _only_on_cuda(device) or nvml.device_reason,
        Channel.CUDA_MEM_GET_INFO: cuda,
    }


def _cuda_reason(machine: Machine, device: DeviceKind) -> Message | None:
    if machine.torch.version is None:
        return message("memory.torch_missing")
    if not machine.torch.cuda_available:
        return machine.torch.reason or message("memory.cuda_missing")
    return _only_on_cuda(device)


def _only_on_cuda(device: DeviceKind) -> Message | None:
    return message("memory.device_is_cpu") if device == "cpu" else None


def _host_reason(channel: Channel, platform: str) -> Message | None:
    if channel is Channel.PSS and platform != "linux":
        return message("memory.not_this_os")
    if channel is Channel.HIGH_WATER and platform not in ("linux", "win32"):
        return message("memory.not_this_os")
    return None
