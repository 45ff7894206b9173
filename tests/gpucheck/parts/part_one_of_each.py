"""One format of the kernels, one family of models and one setting of the speed, for real."""

from __future__ import annotations

import copy
import time
from functools import partial

import torch

from experiment.gpucheck.decode_steps import Setting
from experiment.gpucheck.kernels import check_formats, check_rescale
from experiment.gpucheck.parts import Task
from experiment.gpucheck.speed import COMPARISONS, Measured
from experiment.gpucheck.tiny_models import tiny
from experiment.gpucheck.tokens import check_families
from experiment.process.wire import Wire


def check(wire: Wire, task: Task) -> None:
    device = torch.device(task.device)
    check_formats(wire, device, ("float16",))
    check_families(wire, device, ("llama",))
    check_rescale(wire, device)
    model = copy.deepcopy(tiny("llama", "sdpa"))
    deadline = time.monotonic() + 1000
    measured = Measured(wire, model, 1e9, deadline, lambda work: (work(), work)[1])
    with torch.no_grad():
        measured.add("paged", Setting(2, 8), measured.paged_step_s)
        for name in ("static", "continuous"):
            measured.add(name, Setting(2, 8), partial(COMPARISONS[name], model))
    late = Measured(wire, model, 1e9, time.monotonic(), lambda work: work)
    late.add("paged", Setting(1, 8), late.paged_step_s)
