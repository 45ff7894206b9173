"""Probe the machine in a separate process: ``python -m experiment.children.probe``.

It imports torch and may initialise CUDA to check NVML, which the runner must not do. The task is
``{"device": "auto" | "cpu" | "cuda"}``; the result is one EnvironmentProbed event.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata, util
from pathlib import Path
from typing import Any, Literal

import psutil

import experiment
from experiment.events import EnvironmentProbed
from experiment.machine.background_load import load_average
from experiment.machine.cpuinfo import parse_cpuinfo
from experiment.machine.environment import (
    DEPRECATED_PYNVML,
    CgroupLimits,
    CpuFacts,
    Environment,
    Machine,
    Package,
    PythonFacts,
    RamFacts,
    SystemFacts,
    choose_device,
    device_name,
    load_facts,
    requirements,
)
from experiment.machine.thread_record import usable_cores
from experiment.machine.toolchain import c_compiler
from experiment.memory.cgroup import read_cgroup
from experiment.memory.gpu_probe import probe_gpus, torch_facts
from experiment.memory.ladder import ladder
from experiment.process.wire import Wire, exit_process, serve

_CONTAINER_WORDS = ("docker", "kubepods", "containerd", "lxc", "libpod")
_X86 = ("x86_64", "amd64", "i386", "i686")


def main(wire: Wire, task: dict[str, Any]) -> None:
    """Run the task.

    Raises:
        UserError: CUDA was requested and is not available.
    """
    environment = assemble(probe(task.get("others_cores")), task.get("device", "auto"))
    wire.emit(EnvironmentProbed(environment=environment.model_dump(mode="json")))


def assemble(machine: Machine, requested: str) -> Environment:
    """Derive device, requirements and channels from the facts.

    Raises:
        UserError: CUDA was requested and is not available.
    """
    device = choose_device(requested, machine.torch)
    return Environment(
        **{name: getattr(machine, name) for name in Machine.model_fields},
        device=device,
        device_name=device_name(machine, device),
        requirements=requirements(machine),
        channels=ladder(machine, device),
    )


def probe(others_cores: float | None = None) -> Machine:
    """Collect all facts. Imports torch, and initialises CUDA if it works.

    Args:
        others_cores: background load, measured before any of our processes worked.
    """
    # Before importing torch, so that this process does not count as load.
    load = load_facts(load_average(), psutil.cpu_count(), others_cores)
    torch = _import_torch()
    facts = torch_facts(torch)
    gpus, nvml = probe_gpus(torch if facts.cuda_available else None)
    limits = read_cgroup()
    return Machine(
        python=PythonFacts(
            version=platform.python_version(),
            implementation=platform.python_implementation(),
            virtual_environment=_virtual_environment(),
        ),
        system=_system(limits),
        cpu=_cpu(),
        ram=ram_facts(psutil.virtual_memory(), limits),
        load=load,
        torch=facts,
        nvml=nvml,
        gpus=gpus,
        transformers=_package("transformers"),
        vllm=_vllm(),
        pynvml_distributions=_pynvml_distributions(),
        c_compiler=c_compiler() if facts.cuda_available else None,
    )


def in_container(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this is a container; False if there is no indication."""
    if any((root / name).exists() for name in (".dockerenv", "run/.containerenv")):
        return True
    if environ.get("container") or environ.get("KUBERNETES_SERVICE_HOST"):
        return True
    try:
        text = (root / "proc/1/cgroup").read_text(encoding="utf-8")
    except OSError:
        return False
    return any(word in text for word in _CONTAINER_WORDS)


def cpu_flags(flags: frozenset[str], machine: str) -> dict[str, bool | None]:
    """Relevant instruction sets; None if the system does not list flags."""
    x86_only = machine.lower() in _X86
    if not flags:
        unknown = None if x86_only else False
        return {"avx2": unknown, "avx512": unknown, "bf16": None, "amx": unknown}
    return {
        "avx2": "avx2" in flags,
        "avx512": "avx512f" in flags,
        "bf16": bool(flags & {"avx512_bf16", "amx_bf16", "bf16"}),
        "amx": "amx_tile" in flags,
    }


def ram_facts(memory: Any, limits: CgroupLimits) -> RamFacts:
    """Main memory, limited by the control group."""
    available = int(memory.available)
    if limits.memory_free_bytes is not None:
        available = min(available, limits.memory_free_bytes)
    return RamFacts(total_bytes=int(memory.total), available_bytes=available)


def _import_torch() -> Any | None:
    try:
        return importlib.import_module("torch")
    except ImportError:
        return None


def _virtual_environment() -> Literal["venv", "conda"] | None:
    if sys.prefix != sys.base_prefix:
        return "venv"
    is_conda = Path(sys.prefix, "conda-meta").is_dir()
    return "conda" if is_conda and os.environ.get("CONDA_DEFAULT_ENV") != "base" else None


def _system(limits: CgroupLimits) -> SystemFacts:
    kernel = platform.release()
    return SystemFacts(
        os=platform.system(),
        kernel=kernel,
        machine=platform.machine(),
        container=in_container(),
        wsl="microsoft" in kernel.lower(),
        cgroup=limits,
    )


def _cpu() -> CpuFacts:
    model, flags = _cpu_model()
    return CpuFacts(
        model=model,
        physical_cores=psutil.cpu_count(logical=False),
        logical_cores=psutil.cpu_count(),
        usable_cores=len(usable_cores() or ()) or os.cpu_count(),
        **cpu_flags(flags, platform.machine()),
    )


def _cpu_model() -> tuple[str | None, frozenset[str]]:
    if sys.platform == "linux":
        try:
            return parse_cpuinfo(Path("/proc/cpuinfo").read_text(encoding="utf-8"))
        except OSError:
            return None, frozenset()
    if sys.platform == "darwin":
        command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)  # noqa: S603
        return done.stdout.strip() or None, frozenset()
    return platform.processor() or None, frozenset()


def _package(name: str) -> Package:
    """Find a package without importing it; importing vLLM would initialise CUDA."""
    try:
        return Package(found=True, version=metadata.version(name))
    except metadata.PackageNotFoundError:
        spec = util.find_spec(name)
        # A directory of that name in the working directory is a namespace package without origin.
        return Package(found=spec is not None and spec.origin is not None)


def _vllm(root: Path = Path(experiment.__file__).parent.parent) -> Package:
    """vLLM of the interpreter that was named, or of ``make vllm`` by its version file."""
    if os.environ.get("PAGEDKV_VLLM_PYTHON"):
        from experiment.arms.launch import vllm_version

        version = vllm_version()
        return Package(found=version is not None, version=version)
    stamp = root / ".venv-vllm" / ".ready"
    with contextlib.suppress(OSError):
        return Package(found=True, version=stamp.read_text(encoding="utf-8").strip())
    return Package(found=False)


def _pynvml_distributions() -> dict[str, str]:
    """Distributions that provide the module ``pynvml``, and deprecated ones."""
    names = [*metadata.packages_distributions().get("pynvml", ()), *DEPRECATED_PYNVML]
    found: dict[str, str] = {}
    for name in dict.fromkeys(names):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    exit_process(serve("environment", main))
