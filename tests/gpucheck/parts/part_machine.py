"""A part that reports a machine without a GPU."""

from __future__ import annotations

from experiment.children.probe import assemble
from experiment.events import EnvironmentProbed
from experiment.gpucheck.parts import Task, report
from experiment.machine.environment import (
    CpuFacts,
    LoadFacts,
    Machine,
    NvmlFacts,
    Package,
    PythonFacts,
    RamFacts,
    SystemFacts,
    TorchFacts,
)
from experiment.process.wire import Wire
from experiment.text.messages import message


def check(wire: Wire, task: Task) -> None:
    machine = Machine(
        python=PythonFacts(version="3.12.1", implementation="CPython", virtual_environment=None),
        system=SystemFacts(os="Linux", kernel="6.8", machine="x86_64", container=False, wsl=False),
        cpu=CpuFacts(model="A CPU", physical_cores=2, logical_cores=2, usable_cores=2),
        ram=RamFacts(total_bytes=2**34, available_bytes=2**33),
        load=LoadFacts(average=None, per_core=None, busy=None),
        torch=TorchFacts(version="2.13.0", cuda_build=None, cuda_available=False),
        nvml=NvmlFacts(reason=message("memory.nvml_no_library")),
        transformers=Package(found=True),
        vllm=Package(found=False),
        pynvml_distributions={},
    )
    found = assemble(machine, "cpu").model_dump(mode="json")
    wire.emit(EnvironmentProbed(environment=found))
    report(wire, "torch", True, "gpucheck.machine.torch_cpu", version="2.13.0")
