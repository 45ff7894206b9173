"""Compare tokens of our engine with Transformers' ``generate``, for four families of models.

float32 with TF32 off gives the verdict. In half precision tokens may diverge at nearly equal
logits: the number of such requests and the positions are reported without a verdict.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from experiment.gpucheck.engine_runs import (
    FEW,
    MANY,
    divergences,
    engine_tokens,
    transformers_tokens,
)
from experiment.gpucheck.parts import Task, errors_fail, report
from experiment.gpucheck.tiny_models import FAMILIES
from experiment.model.load import set_gpu_kernels
from experiment.process.wire import Wire


def check(wire: Wire, task: Task) -> None:
    """Compare every family."""
    check_families(wire, torch.device(task.device), FAMILIES)


def check_families(wire: Wire, device: torch.device, families: Sequence[str]) -> None:
    """Compare these families in float32, and on a GPU in float16 too."""
    set_gpu_kernels()
    names = ("float32", "float16") if device.type == "cuda" else ("float32",)
    for family in families:
        for name in names:
            about = {"family": family, "dtype": name}
            with errors_fail(wire, f"{family}.{name}", "gpucheck.tokens.raised", **about):
                _compare(wire, device, **about)


def _compare(wire: Wire, device: torch.device, family: str, dtype: str) -> None:
    requests = MANY if device.type == "cuda" else FEW
    ours = engine_tokens(family, device, requests, getattr(torch, dtype)).tokens
    theirs = transformers_tokens(family, device, requests, getattr(torch, dtype))
    places = divergences(ours, theirs)
    passed = not places if dtype == "float32" else None
    key = "gpucheck.tokens.diverge" if places else "gpucheck.tokens.equal"
    params = {"n": len(places), "first": min(places) + 1} if places else {}
    report(wire, f"{family}.{dtype}", passed, key, family=family, dtype=dtype,
           of=len(requests), **params)  # fmt: skip
