"""Run one part of ``gpucheck`` in a separate process: ``python -m experiment.gpucheck.child``.

Its device is the one that the first part found; where that part failed, it looks itself.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from pathlib import Path
from typing import Any

from experiment.events import ArmSkipped, Notice
from experiment.gpucheck.parts import Part, Task
from experiment.gpucheck.result import NEEDS_GPU, NEEDS_TRITON
from experiment.memory.gpu_probe import torch_facts
from experiment.process.wire import Wire, exit_process, serve
from experiment.text.messages import Message, message

INTERPRETED = message("gpucheck.interpreted")


def main(wire: Wire, task: dict[str, Any]) -> None:
    """Run the part of the task, or report why it cannot run here."""
    part, device = Part(**task["part"]), _device(task["device"])
    if reason := _reason_against(part, device):
        wire.emit(ArmSkipped(arm=part.name, reason=reason))
        return
    # Triton reads it when a kernel is defined: set it before the part is imported.
    if device != "cpu":
        os.environ.pop("TRITON_INTERPRET", None)
    elif part.uses_triton:
        os.environ["TRITON_INTERPRET"] = "1"
        wire.emit(Notice(text=INTERPRETED, arm=part.name))
    module = importlib.import_module(part.module)
    module.check(wire, Task(part, device, Path(task["directory"]), float(task["deadline"])))


def _device(found: str | None) -> str:
    """torch's name of the device.

    Detection runs a kernel and keeps a context on the GPU, which would count in parts that measure
    other processes; a GPU in exclusive mode allows no second one.
    """
    if found is None:
        import torch

        found = "cuda" if torch_facts(torch).cuda_available else "cpu"
    return "cuda:0" if found == "cuda" else "cpu"


def _reason_against(part: Part, device: str) -> Message | None:
    """Why a part cannot run on the device; None if it can."""
    if device == "cpu":
        if part.needs_gpu:
            return NEEDS_GPU
        missing = part.uses_triton and importlib.util.find_spec("triton") is None
        return NEEDS_TRITON if missing else None
    if not part.needs_kernels:
        return None
    import torch

    from experiment.engine.cuda.triton_support import too_old

    return too_old(torch.device(device))


if __name__ == "__main__":
    exit_process(serve("gpucheck", main))
