"""The part ``kernels`` with a kernel whose output is off by a hundredth."""

from __future__ import annotations

import torch

from experiment.engine.attention.kernels import KERNELS
from experiment.engine.quantized import LayerKV
from experiment.engine.step_inputs import StepInputs
from experiment.gpucheck.kernels import check_formats
from experiment.gpucheck.parts import Task
from experiment.process.wire import Wire

RIGHT = KERNELS["triton"]


def wrong(q: torch.Tensor, kv: LayerKV, inputs: StepInputs, scale: float) -> torch.Tensor:
    return RIGHT(q, kv, inputs, scale) + 0.01


def check(wire: Wire, task: Task) -> None:
    KERNELS["triton"] = wrong
    check_formats(wire, torch.device(task.device), ("float32",))
