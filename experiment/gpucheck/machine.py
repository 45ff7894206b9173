"""Check the machine: driver, CUDA, compiler, Triton, NVML, allocator, MIG.

The probe's event is recorded as in every run. Missing requirements of a GPU fail; other facts are
reported without a verdict.
"""

from __future__ import annotations

import importlib.util
import os
from importlib import metadata

from experiment.children.probe import assemble, probe
from experiment.events import Channel, EnvironmentProbed
from experiment.gpucheck.parts import Task, report
from experiment.machine.environment import Environment
from experiment.machine.toolchain import find_compiler, has_headers
from experiment.process.wire import Wire
from experiment.text.messages import message

_CHANNELS = (
    Channel.NVML_PROCESS, Channel.NVML_DEVICE, Channel.CUDA_MEM_GET_INFO, Channel.TORCH_RESERVED,
)  # fmt: skip
# Variables that affect how torch allocates, launches or sees GPUs.
_VARIABLES = (
    "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_ORDER", "CUDA_MODULE_LOADING", "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TRITON_INTERPRET", "TRITON_CACHE_DIR",
)  # fmt: skip
_VISIBLE = "CUDA_VISIBLE_DEVICES"


def check(wire: Wire, task: Task) -> None:
    """Report the machine."""
    environment = assemble(probe(), "auto")
    wire.emit(EnvironmentProbed(environment=environment.model_dump(mode="json")))
    torch = environment.torch
    key = "gpucheck.machine.torch" if torch.cuda_build else "gpucheck.machine.torch_cpu"
    report(wire, "torch", torch.version is not None, key,
           version=torch.version, build=torch.cuda_build)  # fmt: skip
    _gpus(wire, environment)
    _triton(wire, task.on_gpu)
    _compiler(wire, task.on_gpu)
    _channels(wire, environment)
    _variables(wire)


def _gpus(wire: Wire, environment: Environment) -> None:
    """Fail if torch cannot use a GPU that NVML lists, unless it is hidden on purpose."""
    gpus, reason = environment.gpus, environment.torch.reason
    why = None if reason is None else reason.model_dump()
    if not gpus:
        report(wire, "gpu", None, "gpucheck.machine.no_gpu", reason=why)
    for place, gpu in enumerate(gpus):
        name = f"gpu{place}"
        report(wire, name, None, "gpucheck.machine.gpu", name=gpu.name, driver=gpu.driver_version,
               capability=gpu.compute_capability, size=gpu.total_bytes)  # fmt: skip
        mig = {True: "on", False: "off", None: "unknown"}[gpu.mig]
        report(wire, f"{name}.mig", None, f"gpucheck.machine.mig_{mig}", name=gpu.name)
    if gpus and not environment.torch.cuda_available:
        hidden = reason is not None and reason.key == "environment.cuda_hidden"
        report(wire, "cuda", None if hidden else False, "gpucheck.machine.unusable", reason=why)
    visible = os.environ.get(_VISIBLE)
    count = sum(gpu.visible for gpu in gpus)
    key = "gpucheck.machine.visible_all" if visible is None else "gpucheck.machine.visible"
    report(wire, "visible", None, key, variable=_VISIBLE, value=visible, n=count)


def _triton(wire: Wire, on_gpu: bool) -> None:
    if importlib.util.find_spec("triton") is None:
        report(wire, "triton", False if on_gpu else None, "gpucheck.machine.no_triton")
        return
    try:
        version = metadata.version("triton")
    except metadata.PackageNotFoundError:  # bundled with torch under another name
        version = None
    report(wire, "triton", True, "gpucheck.machine.triton", version=version)


def _compiler(wire: Wire, on_gpu: bool) -> None:
    """Report C compiler and Python headers, which Triton needs to compile kernel launchers."""
    missing = False if on_gpu else None
    found, headers = find_compiler(), has_headers()
    key = "gpucheck.machine.compiler" if found else "gpucheck.machine.no_compiler"
    report(wire, "compiler", True if found else missing, key, name=found)
    key = "gpucheck.machine.headers" if headers else "gpucheck.machine.no_headers"
    report(wire, "headers", True if headers else missing, key)


def _channels(wire: Wire, environment: Environment) -> None:
    for channel in _CHANNELS:
        status = environment.status(channel)
        key = "gpucheck.machine.channel" if status.usable else "gpucheck.machine.no_channel"
        why = None if status.reason is None else status.reason.model_dump()
        named = message(f"channel.{channel.value}").model_dump()
        report(wire, f"channel.{channel.value}", None, key, channel=named, reason=why)


def _variables(wire: Wire) -> None:
    found = {name: os.environ[name] for name in _VARIABLES if os.environ.get(name)}
    for name, value in found.items():
        report(wire, f"variable.{name}", None, "gpucheck.machine.variable", name=name, value=value)
    if not found:
        report(wire, "variables", None, "gpucheck.machine.no_variables")
