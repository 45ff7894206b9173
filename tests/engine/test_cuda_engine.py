"""The engine on a real GPU: kernels, graphs and swapping, each against what it must equal."""

from __future__ import annotations

import copy
import warnings
from functools import cache
from typing import Any

import pytest
import torch
from checked_run import CheckedRun
from tiny_engine import geometry

from experiment.config.kv_dtype import cache_geometry
from experiment.engine.attention.kernels import (
    KERNELS,
    reference_kernel,
)
from experiment.engine.attention.lookup import layouts, queries, time_lookup
from experiment.engine.cuda.decode_graphs import cuda_capture
from experiment.engine.cuda.triton_support import reason_against
from experiment.engine.engine import Engine
from experiment.engine.kv_pool import KVPool
from experiment.engine.model_runner import ModelRunner
from experiment.engine.quantized import KV_DTYPES, LayerKV
from experiment.engine.sampling import Sampler, SamplingParams, sample_all
from experiment.gpucheck.kernel_cases import Case, Step, make_step, moved
from experiment.gpucheck.tiny_models import POSITIONS, VOCABULARY, tiny
from kvsim.core.scheduler import SchedulerConfig
from kvsim.sizing.geometry import KVGeometry

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]
GPU = torch.device("cuda:0")
TOLERANCES = {torch.float32: 1e-4, torch.float16: 2e-3, torch.bfloat16: 2e-2}
SIZES = [(1, 1, 64), (4, 1, 64), (8, 1, 128), (3, 2, 80), (2, 2, 256), (7, 1, 16)]


@pytest.fixture
def triton() -> None:
    """Skip where the kernels cannot run on this GPU, with the reason."""
    reason = reason_against(GPU)
    if reason is not None:
        pytest.skip(f"{reason.key} {reason.params}")


def on_gpu(step: Step, dtype: torch.dtype = torch.float32) -> Step:
    return moved(step, GPU, dtype)


def agrees(kernel: Any, step: Step, kv: LayerKV) -> None:
    ours = kernel(step.q, kv, step.inputs, step.scale)
    expected = reference_kernel(step.q, kv, step.inputs, step.scale)
    assert not expected.isnan().any()
    tolerance = TOLERANCES[step.q.dtype]
    torch.testing.assert_close(ours, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("block_size", [1, 16, 256])
@pytest.mark.parametrize(("group", "kv_heads", "dim"), SIZES)
def test_heads_and_blocks_of_any_size(
    triton: None, group: int, kv_heads: int, dim: int, block_size: int, dtype: torch.dtype
) -> None:
    sequences = ((700, 1), (0, 1), (255, 1), (256, 1), (90, 3), (0, 140))
    case = Case(sequences, block_size, group * kv_heads, kv_heads, dim)
    step = on_gpu(make_step(case, seed=dim), dtype)
    agrees(KERNELS["triton"], step, step.kv)


@cache
def model_on_gpu(family: str) -> Any:
    return copy.deepcopy(tiny(family)).to(GPU)


def run(
    family: str, kernel: str, graphs: bool, blocks: int = 60, kv_dtype: str = "auto",
    *, compiled: bool = False, **limits: Any,
) -> tuple[CheckedRun, list[list[int]]]:  # fmt: skip
    config = SchedulerConfig(**limits)
    shape, dtype = cache_geometry(geometry(family), kv_dtype), KV_DTYPES.get(kv_dtype)
    pool = KVPool(shape, blocks, 4, dtype or torch.float32, GPU, config.host_blocks)
    runner = ModelRunner(model_on_gpu(family), pool, kernel)
    if graphs:
        runner.capture_decoding(5, POSITIONS, cuda_capture(GPU), compiled=compiled)
        assert pool.written_slots() == 0
    checked = CheckedRun(Engine(runner, config, (), VOCABULARY, POSITIONS))
    for request, length in enumerate((1, 20, 9, 5, 2)):
        checked.engine.add(request, list(range(3, 3 + length)), 6 + 2 * request)
    checked.to_the_end()
    if runner.graphs is not None:
        counts = runner.graphs.counts
        assert counts.steps > 5
        assert counts.padding_rows > 0
    return checked, [checked.engine.generated(request) for request in range(5)]


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_graphs_over_eight_bits_give_the_tokens_of_eager_steps(triton: None, kv_dtype: str) -> None:
    if kv_dtype == "fp8" and torch.cuda.get_device_capability(GPU) < (8, 9):
        pytest.skip("fp8 needs compute capability 8.9")
    _, eager = run("llama", "triton", graphs=False, kv_dtype=kv_dtype)
    _, replayed = run("llama", "triton", graphs=True, kv_dtype=kv_dtype)
    assert replayed == eager


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_the_host_waits_once_a_step(
    triton: None, kv_dtype: str, graphs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By torch's own word, which warns of every operation that waits."""
    step, waits = Engine.execute, []

    def watched(engine: Engine) -> Any:
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                outcome = step(engine)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        waits.append([str(one.message) for one in seen if "synchroniz" in str(one.message)])
        return outcome

    monkeypatch.setattr(Engine, "execute", watched)
    run("llama", "triton", graphs, kv_dtype=kv_dtype)
    # A step in which requests end and none is computed has nothing to wait for.
    assert {len(each) for each in waits} <= {0, 1}, waits
    assert sum(map(len, waits))


def test_a_seed_gives_the_same_tokens_on_every_device() -> None:
    logits = 3 * torch.randn(64, 50257, generator=torch.Generator().manual_seed(0))
    params = [
        SamplingParams(0.7 + row % 3, (0, 50)[row % 2], (1.0, 0.9)[row % 4 // 2], row)
        for row in range(64)
    ]
    found = [
        sample_all(each, [Sampler(one) for one in params], [0] * 64)
        for each in (logits, logits.to(GPU))
    ]
    assert found[0] == found[1]


def test_the_lookup_is_timed_by_the_device(triton: None) -> None:
    """Four times the positions take longer, as they would not if launches were timed."""
    shape, like = KVGeometry(1, 8, 64, 2), torch.empty(0, dtype=torch.float16, device=GPU)
    found = []
    for context in (1024, 4096):
        given = layouts(shape, 32, context, 16, like)
        found.append(time_lookup("triton", queries(32, 8, given[0].kv), given))
    short, long = found
    assert short is not None
    assert long is not None
    assert long.contiguous_s > 2 * short.contiguous_s > 0
