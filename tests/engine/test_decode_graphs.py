"""Decoding over static tensors: every captured step gives what the plan asks for, and no more."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from checked_run import CheckedRun
from static_runs import call_again, flat_kernel, traced
from sweeps import FULL
from tiny_engine import geometry, solo
from transformers import MistralConfig

from experiment.config.kv_dtype import cache_geometry
from experiment.engine.attention import kernels
from experiment.engine.attention.interface import UnsupportedModelError
from experiment.engine.cuda.compiled_layers import compiled_layers
from experiment.engine.cuda.decode_graphs import Capture, DecodeGraphs, padded_sizes
from experiment.engine.cuda.static_decode import StaticBuffers, StaticInputs
from experiment.engine.engine import Engine
from experiment.engine.kv_pool import KVPool
from experiment.engine.model_runner import ModelRunner
from experiment.engine.quantized import KV_DTYPES, bits
from experiment.engine.step_inputs import build_inputs
from experiment.gpucheck.tiny_models import CONFIGS, GROUPED, POSITIONS, VOCABULARY, build, tiny
from kvsim.core.scheduler import SchedulerConfig
from kvsim.core.step import Chunk, OpKind, StepPlan
from kvsim.sizing.geometry import KVGeometry

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def flat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kernels.KERNELS, "flat", flat_kernel)


def make(
    family: str, capture: Capture, most: int = 5, blocks: int = 60, block_size: int = 4,
    kv_dtype: str = "auto", **limits: Any,
) -> tuple[Engine, DecodeGraphs]:  # fmt: skip
    config = SchedulerConfig(**limits)
    shape = cache_geometry(geometry(family), kv_dtype)
    dtype = KV_DTYPES.get(kv_dtype, torch.float32)
    pool = KVPool(shape, blocks, block_size, dtype, CPU, config.host_blocks)
    runner = ModelRunner(tiny(family), pool, "flat")
    graphs = runner.capture_decoding(most, POSITIONS, capture)
    assert pool.written_slots() == 0
    return Engine(runner, config, (), VOCABULARY, POSITIONS), graphs


def plan_of(*chunks: tuple[int, int]) -> StepPlan:
    """Requests that decode at (request, position)."""
    return StepPlan(0, chunks=tuple(Chunk(r, at, 1, samples=True) for r, at in chunks))


def test_sizes_are_those_of_powers_of_two_then_sixteens_and_the_largest() -> None:
    assert padded_sizes(1) == (1,)
    assert padded_sizes(5) == (1, 2, 4, 5)
    assert padded_sizes(8) == (1, 2, 4, 8)
    assert padded_sizes(40) == (1, 2, 4, 8, 16, 32, 40)
    assert padded_sizes(48) == (1, 2, 4, 8, 16, 32, 48)


@pytest.mark.parametrize(
    ("family", "block_size", "capture"),
    [("gpt2", 1, call_again), ("llama", 4, traced), ("qwen2", 64, call_again)],
)
def test_tokens_are_those_of_transformers_and_padding_writes_nothing(
    family: str, block_size: int, capture: Capture
) -> None:
    """Requests end one after another, so every size is replayed, with and without padding."""
    blocks = {4: 60, 1: 200, 64: 5}[block_size]
    engine, graphs = make(family, capture, blocks=blocks, block_size=block_size)
    lengths = (1, 20, 9, 5, 2)
    for request, length in enumerate(lengths):
        engine.add(request, list(range(3, 3 + length)), 4 + 2 * request)
    CheckedRun(engine).to_the_end()
    for request, length in enumerate(lengths):
        expected = solo(family, list(range(3, 3 + length)), 4 + 2 * request)
        assert engine.generated(request) == expected
    # The first step computes prompts: 11 more, 5 requests in the first 3, then one fewer each 2.
    rows = [5] * 3 + [4] * 2 + [3] * 2 + [2] * 2 + [1] * 2
    padding = sum(next(size for size in (1, 2, 4, 5) if size >= live) - live for live in rows)
    counts = graphs.counts
    assert (counts.steps, counts.rows, counts.padding_rows) == (11, sum(rows), padding)


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_preempted_requests_come_back_to_the_same_tokens(preemption: str) -> None:
    engine, graphs = make(
        "llama", call_again, blocks=13, preemption=preemption, host_blocks=20, prefix_caching=True,
        max_num_batched_tokens=16,
    )  # fmt: skip
    prompts = [list(range(3, 3 + length)) for length in (9, 11, 9, 2)]
    for request, prompt in enumerate(prompts):
        engine.add(request, prompt, 12)
    run = CheckedRun(engine)
    run.to_the_end()
    assert any(plan.preempted for plan in run.plans)
    assert (run.count(OpKind.SWAP_OUT) > 0) == (preemption == "swap")
    for request, prompt in enumerate(prompts):
        assert engine.generated(request) == solo("llama", prompt, 12)
    assert graphs.counts.steps > 5


@pytest.mark.parametrize("capture", [call_again, traced])
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_static_rows_write_the_same_bytes_as_a_packed_step_and_padding_none(
    kv_dtype: str, capture: Capture
) -> None:
    """Blocks that begin, grow, stay and are spoiled; block 0, to which padding might go, too."""
    shape = cache_geometry(KVGeometry(1, 2, 8, 4), kv_dtype)
    packed, static = (KVPool(shape, 6, 4, KV_DTYPES[kv_dtype], CPU) for _ in range(2))
    buffers, keys, values = StaticBuffers(4, 16, 4, CPU), *torch.zeros(2, 4, 2, 8)
    replay = capture(lambda: static.write(0, buffers.inputs(4), keys, values))
    assert static.written_slots() == 0
    tables, generator = {7: [2, 0], 3: [4, 1], 5: [5]}, torch.Generator().manual_seed(0)
    steps = [(7, 3), (7, 3, 5), (5,), (3, 7), (7, 5, 3), (5, 7), ()]
    at = dict.fromkeys(tables, 0)
    for number, requests in enumerate(steps):
        plan = plan_of(*((request, at[request]) for request in requests))
        buffers.fill(plan, {r: [0] * 16 for r in tables}, tables, 4)
        keys.copy_(torch.randn(keys.shape, generator=generator) * 2.0 ** (number % 3))
        values.copy_(torch.randn(keys.shape, generator=generator))
        if number == 4:
            keys[1, 0, 3] = float("nan")
        replay()
        if requests:
            inputs = build_inputs(plan, {r: [0] * 16 for r in tables}, tables, 4, CPU)
            packed.write(0, inputs, keys[: len(requests)], values[: len(requests)])
        assert torch.equal(bits(static.kv), bits(packed.kv))
        if static.scales is not None and packed.scales is not None:
            assert torch.equal(static.scales.nan_to_num(-1), packed.scales.nan_to_num(-1))
        for request in requests:
            at[request] += 1
    assert at == {7: 5, 3: 4, 5: 4}


def test_only_single_tokens_that_sample_within_the_maximum_length_are_taken() -> None:
    _, graphs = make("gpt2", call_again, most=2)
    assert graphs.accepts(plan_of((7, 3), (8, POSITIONS - 1)))
    assert not graphs.accepts(plan_of())
    assert not graphs.accepts(plan_of((7, 3), (8, 0), (9, 1)))
    assert not graphs.accepts(plan_of((7, POSITIONS)))
    assert not graphs.accepts(StepPlan(0, chunks=(Chunk(7, 3, 1, samples=False),)))
    assert not graphs.accepts(StepPlan(0, chunks=(Chunk(7, 3, 2, samples=True),)))


def test_the_static_bytes_are_those_of_the_tensors_and_the_logits() -> None:
    _, graphs = make("gpt2", call_again, most=3)
    numbers, tables = 3 * (4 * 8 + 4), 3 * (POSITIONS // 4) * 4
    assert graphs.static_bytes == numbers + tables + 4 * 4 + 3 * 8 + 3 * VOCABULARY * 4


def test_a_window_below_the_maximum_length_cannot_be_captured() -> None:
    model = build(MistralConfig(sliding_window=POSITIONS - 1, **GROUPED))
    pool = KVPool(geometry("mistral"), 4, 4, torch.float32, CPU)
    runner = ModelRunner(model, pool, "flat")
    with pytest.raises(UnsupportedModelError, match="sliding_window"):
        runner.capture_decoding(2, POSITIONS, call_again)
    assert runner.graphs is None
    runner.capture_decoding(2, POSITIONS - 1, call_again)


@pytest.mark.parametrize("family", CONFIGS if FULL else ["gpt2", "llama"])
def test_compiled_layers_give_the_same_logits_and_leave_the_model_as_it_was(family: str) -> None:
    compiled: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        compiled.append(len(list(graph.graph.nodes)))
        return graph.forward

    def logits(runner: ModelRunner, inputs: StaticInputs) -> torch.Tensor:
        with torch.inference_mode():
            return runner.forward(inputs)

    torch.compiler.reset()
    engine, graphs = make(family, call_again)
    runner = engine.runner
    plan = plan_of((0, 0), (1, 0), (2, 0))
    inputs = graphs.fill(plan, {0: [7], 1: [9], 2: [11]}, {0: [3], 1: [1], 2: [2]})
    expected = logits(runner, inputs)
    with compiled_layers(runner.model, backend):
        ours = logits(runner, inputs)
        # All layers share the few pieces that their code falls into.
        assert 2 <= len(compiled) <= 4
        assert min(compiled) > 1
    torch.testing.assert_close(ours, expected)
    compiled.clear()
    assert torch.equal(logits(runner, inputs), expected)
    assert not compiled


def test_layers_that_cannot_be_compiled_leave_the_model_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = build(CONFIGS["llama"]())
    compile_one, calls = torch.compile, []

    def fail_at_the_second(forward: Any, **options: Any) -> Any:
        calls.append(forward)
        if len(calls) == 2:
            raise RuntimeError("no compiler")
        return compile_one(forward, **options)

    monkeypatch.setattr(torch, "compile", fail_at_the_second)
    with pytest.raises(RuntimeError, match="no compiler"), compiled_layers(model, "eager"):
        raise AssertionError
    assert len(calls) == 2
    assert not any("forward" in vars(module) for module in model.modules())
    with pytest.raises(RuntimeError), compiled_layers(torch.nn.Linear(1, 1)):
        raise AssertionError
