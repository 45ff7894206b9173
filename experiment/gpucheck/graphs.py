"""Check that decode steps replayed from CUDA graphs generate the tokens of eager steps."""

from __future__ import annotations

import torch

from experiment.gpucheck.engine_runs import MANY, divergences, engine_tokens
from experiment.gpucheck.parts import Task, errors_fail, report
from experiment.model.load import set_gpu_kernels
from experiment.process.wire import Wire
from experiment.text.messages import message

_FAMILIES = ("gpt2", "llama")


def check(wire: Wire, task: Task) -> None:
    """Run the same requests with graphs on and off."""
    set_gpu_kernels()
    for family in _FAMILIES:
        about = {"family": family, "dtype": "float32"}
        with errors_fail(wire, f"{family}.raised", "gpucheck.tokens.raised", **about):
            _compare(wire, family, torch.device(task.device))


def _compare(wire: Wire, family: str, device: torch.device) -> None:
    eager = engine_tokens(family, device, MANY)
    for name, mode in (("graphs", "graphs.plain"), ("graphs_compiled", "graphs.compiled")):
        compiled = name == "graphs_compiled"
        replayed = engine_tokens(family, device, MANY, graphs=True, compiled=compiled)
        diverged = len(divergences(replayed.tokens, eager.tokens))
        right = diverged == 0 and replayed.graph_steps > 0
        report(wire, f"{family}.{name}", right, "gpucheck.graphs",
               family=family, mode=message(mode).model_dump(), n=diverged, of=len(MANY),
               steps=replayed.graph_steps)  # fmt: skip
