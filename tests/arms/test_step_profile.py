"""What torch's profiler sees of a step, and what it has to be told of."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from experiment.arms.step_profile import StepProfiler
from experiment.config.schema import Config
from experiment.engine.cpu.packed_layers import PackedLinear
from experiment.engine.cpu.packed_weights import pack_weights
from experiment.events import StepProfile

DECODING: Any = SimpleNamespace(chunks=[SimpleNamespace(count=1, samples=True)])


@pytest.mark.parametrize("rows", [4, 100], ids=["few rows", "many rows"])
@torch.inference_mode()
def test_a_packed_layers_products_are_matrix_products(rows: int) -> None:
    """Few rows are multiplied by code of the engine's own, of which the profiler knows nothing."""
    model = torch.nn.Sequential(torch.nn.Linear(256, 2560)).requires_grad_(False)
    pack_weights(model)
    emitted: list[Any] = []
    requests = [SimpleNamespace(max_new_tokens=9)]
    config, workload = (
        Config.model_validate({"run": {"profile": True}}),
        SimpleNamespace(requests=requests),
    )
    task = SimpleNamespace(arm="paged", logs=None, config=config, workload=workload)
    run: Any = SimpleNamespace(task=task, device=torch.device("cpu"), emit=emitted.append)
    profiler, x = StepProfiler(run), torch.randn(rows, 256)
    model(x)
    profiler.after(DECODING)
    for _ in range(3):
        with profiler.step():
            model(x)
        profiler.after(DECODING)
    profiler.finish()
    (seen,) = emitted
    assert isinstance(seen, StepProfile)
    assert seen.steps == 3
    assert seen.matrix_ms is not None
    assert seen.matrix_ms > 0
    assert PackedLinear.profile_scope is None
