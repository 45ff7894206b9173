"""How often the host waits for the device in a step, on a device that has no numbers to give.

On torch's device "meta" whatever reads a number on the host raises: ``.item()``, ``if tensor``,
``nonzero``, a copy to the CPU. Only ``.tolist()`` is answered here, and counted.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from static_runs import call_again, flat_kernel
from tiny_engine import geometry

from experiment.config.kv_dtype import cache_geometry
from experiment.engine.attention import kernels
from experiment.engine.engine import Engine
from experiment.engine.kv_pool import KVPool
from experiment.engine.model_runner import ModelRunner
from experiment.engine.quantized import KV_DTYPES
from experiment.engine.sampling import SamplingParams
from experiment.gpucheck.tiny_models import CONFIGS, POSITIONS, VOCABULARY, build
from kvsim.core.scheduler import SchedulerConfig
from kvsim.core.step import OpKind

META = torch.device("meta")
RANDOM = SamplingParams(0.8, 5, 0.9, 3, frozenset({7}), min_new_tokens=9)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of each read; the tokens are 0."""
    seen: list[int] = []
    tolist = torch.Tensor.tolist

    def counted(tensor: torch.Tensor) -> Any:
        if not tensor.is_meta:
            return tolist(tensor)
        seen.append(tensor.numel())
        return [0] * tensor.numel()

    monkeypatch.setattr(torch.Tensor, "tolist", counted)
    return seen


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
@pytest.mark.parametrize("kv_dtype", ["auto", *KV_DTYPES])
def test_the_host_waits_once_a_step_for_all_tokens(
    kv_dtype: str, graphs: bool, reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts in chunks, forks, copies on write, preemptions, greedy rows and random ones."""
    monkeypatch.setitem(kernels.KERNELS, "flat", flat_kernel)
    shape = cache_geometry(geometry("gpt2"), kv_dtype)
    pool = KVPool(shape, 9, 4, KV_DTYPES.get(kv_dtype, torch.float32), META)
    runner = ModelRunner(build(CONFIGS["gpt2"]()).to(META), pool, "flat" if graphs else "torch")
    if graphs:
        pool.scatter = lambda *arguments: None  # in place of Triton's, which drops rows itself
        runner.capture_decoding(4, POSITIONS, call_again)
    engine = Engine(runner, SchedulerConfig(max_num_batched_tokens=8), (), VOCABULARY, POSITIONS)
    engine.add(0, list(range(10)), 9, RANDOM, children=(3,))
    engine.add(1, [4, 5], 14)
    engine.add(2, [6], 5, RANDOM)
    kinds, preempted = set(), 0
    while engine.scheduler.has_work:
        del reads[:]
        outcome = engine.step()[0]
        assert reads == ([len(outcome.tokens)] if outcome.tokens else [])
        kinds |= {op.kind for op in outcome.plan.ops}
        preempted += len(outcome.plan.preempted)
    assert {OpKind.COPY, OpKind.FREE} <= kinds
    assert preempted
    assert not graphs or (runner.graphs is not None and runner.graphs.counts.steps > 5)
