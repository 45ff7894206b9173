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
from experiment.gpucheck.parts import Task, report
from experiment.gpucheck.tiny_models import FAMILIES
from experiment.model.load import set_gpu_kernels
from experiment.process.wire import Wire
from experiment.text.errors import one_line


def check(wire: Wire, task: Task) -> None:
    """Compare every family."""
    check_families(wire, torch.device(task.device), FAMILIES)


def check_families(wire: Wire, device: torch.device, families: Sequence[str]) -> None:
    """Compare these families in float32, and on a GPU in float16 too."""
    set_gpu_kernels()
    for family in families:
        _compare(wire, family, device, torch.float32)
        if device.type == "cuda":
            _compare(wire, family, device, torch.float16)


def _compare(wire: Wire, family: str, device: torch.device, dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    requests = MANY if device.type == "cuda" else FEW
    check_id = f"{family}.{name}"
    try:
        ours = engine_tokens(family, device, requests, dtype).tokens
        theirs = transformers_tokens(family, device, requests, dtype)
    except Exception as error:  # any error of the engine, Transformers or the driver
        text = one_line(error)
        report(wire, check_id, False, "gpucheck.tokens.raised",
               family=family, dtype=name, error=text)  # fmt: skip
        return
    places = [place for place in divergences(ours, theirs) if place is not None]
    about = {"family": family, "dtype": name, "of": len(requests)}
    judged = dtype == torch.float32
    if places:
        found = False if judged else None
        report(wire, check_id, found, "gpucheck.tokens.diverge",
               n=len(places), first=min(places) + 1, **about)  # fmt: skip
    else:
        report(wire, check_id, True if judged else None, "gpucheck.tokens.equal", **about)
