"""Check that preemption by swapping to pinned host memory changes no token."""

from __future__ import annotations

import torch

from experiment.gpucheck.engine_runs import MANY, divergences, engine_tokens, kernel_of
from experiment.gpucheck.parts import Task, report
from experiment.model.load import set_gpu_kernels
from experiment.process.wire import Wire
from experiment.text.messages import message

_FAMILY = "llama"
# Too few blocks for all requests, and enough on the host.
_BLOCKS, _HOST_BLOCKS = 14, 40


def check(wire: Wire, task: Task) -> None:
    """Run the same requests in a large pool and in a small one."""
    set_gpu_kernels()
    device = torch.device(task.device)
    ample = engine_tokens(_FAMILY, device, MANY)
    for graphs in (False, True) if kernel_of(device) == "triton" else (False,):
        swapped = engine_tokens(
            _FAMILY, device, MANY, graphs=graphs, blocks=_BLOCKS, preemption="swap",
            host_blocks=_HOST_BLOCKS,
        )  # fmt: skip
        diverged = len(divergences(swapped.tokens, ample.tokens))
        name, mode = ("graphs", "graphs.plain") if graphs else ("eager", "gpucheck.swap_eager")
        passed = diverged == 0 and swapped.swapped_blocks > 0
        report(wire, f"tokens.{name}", passed, "gpucheck.swap",
               n=diverged, of=len(MANY), blocks=swapped.swapped_blocks,
               mode=message(mode).model_dump())  # fmt: skip
        key = "gpucheck.swap_pinned" if swapped.is_pinned else "gpucheck.swap_not_pinned"
        report(wire, f"pinned.{name}", swapped.is_pinned, key)
