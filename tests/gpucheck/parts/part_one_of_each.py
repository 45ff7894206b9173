"""One format of the kernels, one family of models and one setting of the speed, for real."""

from __future__ import annotations

import copy
import time

import torch

from experiment.gpucheck.kernels import check_formats
from experiment.gpucheck.parts import Task
from experiment.gpucheck.speed import Measured, Setting
from experiment.gpucheck.tiny_models import tiny
from experiment.gpucheck.tokens import check_families
from experiment.wire import Wire


def check(wire: Wire, task: Task) -> None:
    device = torch.device(task.device)
    check_formats(wire, device, ("float16",))
    check_families(wire, device, ("llama",))
    model = copy.deepcopy(tiny("llama", "sdpa"))
    deadline = time.monotonic() + 1000
    measured = Measured(wire, model, 1e9, deadline, lambda work: (work(), work)[1])
    with torch.no_grad():
        measured.add("paged", Setting(2, 8), measured.paged_step_s)
        measured.add("static", Setting(2, 8), measured.static_step_s(compiled=False))
    late = Measured(wire, model, 1e9, time.monotonic(), lambda work: work)
    late.add("paged", Setting(1, 8), late.paged_step_s)
