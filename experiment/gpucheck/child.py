"""Run one part of ``gpucheck`` in a separate process: ``python -m experiment.gpucheck.child``.

It detects its device itself, so that parts are independent of each other.
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
    part, device = Part(**task["part"]), _device()
    if device == "cpu" and (reason := _reason_against(part)):
        wire.emit(ArmSkipped(arm=part.name, reason=reason))
        return
    if device == "cpu" and part.uses_triton:
        # Triton reads it when a kernel is defined: set it before the part is imported.
        os.environ["TRITON_INTERPRET"] = "1"
        wire.emit(Notice(text=INTERPRETED, arm=part.name))
    module = importlib.import_module(part.module)
    module.check(wire, Task(part, device, Path(task["directory"]), float(task["deadline"])))


def _device() -> str:
    import torch

    return "cuda:0" if torch_facts(torch).cuda_available else "cpu"


def _reason_against(part: Part) -> Message | None:
    """Why a part cannot run on the CPU; None if it can."""
    if part.needs_gpu:
        return NEEDS_GPU
    if part.uses_triton and importlib.util.find_spec("triton") is None:
        return NEEDS_TRITON
    return None


if __name__ == "__main__":
    exit_process(serve("gpucheck", main))
