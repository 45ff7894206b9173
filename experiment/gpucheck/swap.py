"""Preemption by swapping to pinned host memory must change no token."""

from __future__ import annotations

import torch

from experiment.gpucheck.engine_runs import MANY, divergences, engine_tokens
from experiment.gpucheck.parts import Task, report
from experiment.model.load import set_gpu_kernels
from experiment.process.wire import Wire
from experiment.text.messages import message

_FAMILY = "llama"
# Fewer blocks than the requests need together, and room for all of them on the host.
_BLOCKS, _HOST_BLOCKS = 14, 40


def check(wire: Wire, task: Task) -> None:
    """Run the same requests in a pool that holds them all, and in one that does not."""
    set_gpu_kernels()
    device = torch.device(task.device)
    ample = engine_tokens(_FAMILY, device, MANY)
    for graphs in (False, True):
        swapped = engine_tokens(
            _FAMILY, device, MANY, graphs=graphs, blocks=_BLOCKS, preemption="swap",
            host_blocks=_HOST_BLOCKS,
        )  # fmt: skip
        apart = sum(place is not None for place in divergences(swapped.tokens, ample.tokens))
        name = "graphs" if graphs else "eager"
        report(wire, f"tokens.{name}", apart == 0 and swapped.swapped_blocks > 0, "gpucheck.swap",
               n=apart, of=len(MANY), blocks=swapped.swapped_blocks,
               mode=message(f"gpucheck.swap_{name}").model_dump())  # fmt: skip
        key = "gpucheck.swap_pinned" if swapped.is_pinned else "gpucheck.swap_not_pinned"
        report(wire, f"pinned.{name}", swapped.is_pinned, key)
