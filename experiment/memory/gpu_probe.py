"""Find the GPUs and check whether NVML can measure them; runs in the probe's process."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from experiment.machine.environment import Gpu, NvmlFacts, TorchFacts
from experiment.machine.toolchain import minimum_driver
from experiment.memory.figure import MemoryFigure, UnreadableError, figure
from experiment.memory.nvml import Nvml, open_nvml
from experiment.text.messages import Message, message

T = TypeVar("T")
PROBE_BYTES = 64 * 2**20
# These drivers attribute memory to the wrong processes (gpustat, issue 161).
_WRONG_DRIVERS = ((535, 43), (535, 86))


def torch_facts(torch: Any | None) -> TorchFacts:
    """Versions of torch, and whether CUDA works; ``torch`` is the module, or None.

    Runs a kernel if torch finds a GPU: builds have kernels for some GPUs only.
    """
    if torch is None:
        missing = message("memory.torch_missing")
        return TorchFacts(version=None, cuda_build=None, cuda_available=False, reason=missing)
    build = torch.version.cuda or torch.version.hip
    seen = torch.cuda.is_available()
    reason = _why_no_kernel(torch) if seen else _why_no_cuda(torch, build)
    return TorchFacts(
        version=str(torch.__version__),
        cuda_build=build,
        cuda_available=reason is None,
        reason=reason,
    )


def _why_no_kernel(torch: Any) -> Message | None:
    try:
        torch.ones(1, device="cuda:0").sum().item()
    except RuntimeError as error:
        if "no kernel image" in str(error):
            return message("environment.cuda_no_kernels")
        return message("environment.cuda_kernel_failed", error=_first_line(error))
    return None


def _first_line(error: Exception) -> str:
    first = str(error).partition("\n")[0]  # advice follows
    return f"{type(error).__name__}: {first[:200]}"


def _why_no_cuda(torch: Any, build: str | None) -> Message:
    if build is None:
        return message("environment.cuda_cpu_build")
    if os.environ.get("CUDA_VISIBLE_DEVICES", "unset").strip() in ("", "-1"):
        return message("environment.cuda_hidden")
    try:
        torch.cuda.init()
    except Exception as error:
        text = str(error)
        if "too old" in text:
            return _with_driver("environment.cuda_driver_old", build)
        if "no NVIDIA driver" in text:
            return _with_driver("environment.cuda_no_driver", build)
        if "No CUDA GPUs" not in text:
            return message("environment.cuda_not_started", error=_first_line(error))
    return message("environment.cuda_no_device")


def _with_driver(key: str, build: str) -> Message:
    """The reason and, if known, the driver version that this build of torch needs."""
    reason, needed = message(key), minimum_driver(build)
    if needed is None:
        return reason
    return message(
        "environment.cuda_driver_needed", reason=reason.model_dump(), cuda=build, driver=needed
    )


def probe_gpus(torch: Any | None, library: Any | None = None) -> tuple[tuple[Gpu, ...], NvmlFacts]:
    """List the GPUs and check NVML. ``torch`` is None if CUDA does not work.

    Temporarily allocates 64 MiB on torch's first GPU. ``library`` replaces ``pynvml``.
    """
    try:
        nvml = open_nvml(library)
    except UnreadableError as error:
        return _torch_gpus(torch, None, None), NvmlFacts(reason=error.reason)
    try:
        driver = _known(nvml.driver_version)
        if torch is None:
            return _nvml_gpus(nvml, driver), NvmlFacts(reason=None, driver_version=driver)
        return _torch_gpus(torch, nvml, driver), _try_nvml(torch, nvml, driver)
    finally:
        nvml.close()


def _known(read: Callable[[], T]) -> T | None:
    """What NVML returns; None if it returns an error."""
    with suppress(UnreadableError):
        return read()
    return None


def _torch_gpus(torch: Any | None, nvml: Nvml | None, driver: str | None) -> tuple[Gpu, ...]:
    """List the GPUs that torch can use, in its order; it uses the first."""
    found: list[Gpu] = []
    for index in range(torch.cuda.device_count() if torch is not None else 0):
        assert torch is not None
        properties = torch.cuda.get_device_properties(index)
        uuid = torch_uuid(properties)
        device = _known(partial(nvml.device, uuid)) if nvml is not None and uuid else None
        found.append(
            Gpu(
                name=properties.name,
                uuid=device.uuid if device else _prefixed(uuid),
                compute_capability=f"{properties.major}.{properties.minor}",
                total_bytes=properties.total_memory,
                driver_version=driver,
                mig=device.mig_enabled() if device else None,
                visible=True,
            )
        )
    return tuple(found)


def _nvml_gpus(nvml: Nvml, driver: str | None) -> tuple[Gpu, ...]:
    """List the GPUs that exist although torch cannot use them, without those that do not answer."""
    found: list[Gpu] = []
    for device in _known(nvml.devices) or ():
        with suppress(UnreadableError):
            found.append(
                Gpu(
                    name=device.name(),
                    uuid=device.uuid,
                    compute_capability=device.compute_capability(),
                    total_bytes=device.memory().total_bytes,
                    driver_version=driver,
                    mig=device.mig_enabled(),
                    visible=False,
                )
            )
    return tuple(found)


def torch_uuid(properties: Any) -> str | None:
    """UUID from torch's device properties, without prefix."""
    uuid = getattr(properties, "uuid", None)
    return str(uuid) if uuid is not None else None


def _prefixed(uuid: str | None) -> str | None:
    return uuid if uuid is None or uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


def _try_nvml(torch: Any, nvml: Nvml, driver: str | None) -> NvmlFacts:
    """Allocate a known amount, and check whether NVML reports it for process and device."""
    properties = torch.cuda.get_device_properties(0)
    try:
        device = nvml.device(torch_uuid(properties) or "")
        held = torch.empty(PROBE_BYTES, dtype=torch.uint8, device="cuda:0")
        torch.cuda.synchronize()
    except UnreadableError as error:
        return NvmlFacts(reason=error.reason, driver_version=driver)
    except RuntimeError as error:  # the GPU is full or broken
        failed = message("memory.sample_failed", error=type(error).__name__)
        return NvmlFacts(reason=failed, driver_version=driver)
    process = figure(lambda: device.process_bytes([os.getpid()]))
    memory = figure(device.memory)
    others = bool(_known(lambda: device.foreign_pids([os.getpid()])))
    del held
    torch.cuda.empty_cache()
    return NvmlFacts(
        reason=None,
        process_reason=process_reason(process, others, driver),
        device_reason=device_reason(memory, properties.total_memory),
        driver_version=driver,
    )


def process_reason(seen: MemoryFigure, others: bool, driver: str | None) -> Message | None:
    """Why NVML's per-process figure is unusable, given an allocation of ``PROBE_BYTES``; or None.

    A process that is not listed although it holds memory is hidden by a PID namespace. So is one
    that is listed with too little: another process has the same number.
    """
    if seen.bytes is not None:
        if seen.bytes < PROBE_BYTES:
            return message("memory.nvml_pid_namespace")
        if driver and _is_wrong(driver):
            return message("memory.nvml_driver_wrong", version=driver)
        return None
    assert seen.reason is not None
    if seen.reason.key == "memory.nvml_not_listed":
        return message("memory.nvml_pid_namespace" if others else "memory.nvml_lists_nothing")
    return seen.reason


def device_reason(seen: MemoryFigure, torch_total: int) -> Message | None:
    """Why NVML's figure for the device is unusable, or None.

    ``torch_total`` is the capacity in bytes that torch reports. A MIG slice is much smaller than
    its GPU, whose figure would include the other slices.
    """
    if seen.reason is not None:
        return seen.reason
    if seen.total_bytes is not None and torch_total < 0.8 * seen.total_bytes:
        return message("memory.nvml_mig_parent")
    return None


def _is_wrong(driver: str) -> bool:
    numbers = tuple(int(part) for part in re.findall(r"\d+", driver)[:2])
    return _WRONG_DRIVERS[0] <= numbers <= _WRONG_DRIVERS[1]
