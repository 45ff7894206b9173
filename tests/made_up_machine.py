"""Machines that are not here: one without a GPU, one with, and what follows from them."""

from __future__ import annotations

from typing import Any

from experiment.children.probe import assemble
from experiment.machine.environment import (
    CpuFacts,
    Environment,
    Gpu,
    LoadFacts,
    Machine,
    NvmlFacts,
    Package,
    PythonFacts,
    RamFacts,
    SystemFacts,
    TorchFacts,
)
from experiment.text.messages import message

UUID = "11111111-2222-3333-4444-555555555555"


def machine(**changes: Any) -> Machine:
    """A sound Linux machine without a GPU, but for ``changes``."""
    facts: dict[str, Any] = {
        "python": PythonFacts(
            version="3.12.1", implementation="CPython", virtual_environment="venv"
        ),
        "system": SystemFacts(
            os="Linux", kernel="6.8.0", machine="x86_64", container=False, wsl=False
        ),
        "cpu": CpuFacts(model="A CPU", physical_cores=4, logical_cores=8, usable_cores=8),
        "ram": RamFacts(total_bytes=32 * 2**30, available_bytes=16 * 2**30),
        "load": LoadFacts(average=0.4, per_core=0.05, busy=False),
        "torch": TorchFacts(
            version="2.13.0+cpu",
            cuda_build=None,
            cuda_available=False,
            reason=message("environment.cuda_cpu_build"),
        ),
        "nvml": NvmlFacts(reason=message("memory.nvml_no_library")),
        "transformers": Package(found=True, version="5.23.0"),
        "vllm": Package(found=False),
        "pynvml_distributions": {"nvidia-ml-py": "13.615.71"},
    }
    return Machine(**(facts | changes))


def cuda_machine(nvml: NvmlFacts | None = None, **changes: Any) -> Machine:
    """The same with one GPU that works."""
    gpu = Gpu(
        name="Fake GPU",
        uuid=f"GPU-{UUID}",
        compute_capability="9.0",
        total_bytes=80 * 2**30,
        driver_version="570.124.06",
        mig=False,
        visible=True,
    )
    torch = TorchFacts(version="2.13.0", cuda_build="13.0", cuda_available=True)
    return machine(torch=torch, nvml=nvml or NvmlFacts(reason=None), gpus=(gpu,), **changes)


def cpu_environment() -> Environment:
    return assemble(machine(), "cpu")


def cuda_environment(nvml: NvmlFacts | None = None) -> Environment:
    return assemble(cuda_machine(nvml), "cuda")
