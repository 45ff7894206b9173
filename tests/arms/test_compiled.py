"""Transformers' padded batch with compiled decoding steps: what ``generate`` is told, and when."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from arm_runs import make_config, with_requests
from arms_here import events_of
from transformers import Cache, CompileConfig, GenerationMixin, GPT2LMHeadModel, StaticLayer

from experiment.arms import contiguous
from experiment.arms.base import ArmRun
from experiment.arms.functions import FUNCTIONS
from experiment.arms.launch import Launch, plan_launch
from experiment.config.schema import Config, ExperimentConfig, expand_arms, group_of
from experiment.events import (
    ModelCompiled,
    ModelPrepared,
    PoolReserved,
    ProfileRun,
    RequestFinished,
    Step,
    WorkloadReady,
    WorkloadRequest,
)
from experiment.events.sampling import SamplingConfig
from experiment.replay.timeline import pool_shape
from experiment.text.messages import Message, message
from experiment.workload.first_prompts import NEW_TOKENS
from experiment.workload.prepared import Prepared
from kvsim.accounting.ledger import Ledger

ARM = "contiguous.compiled"
REQUESTS = [
    WorkloadRequest(id=i, prompt="x", token_ids=[1] * length, max_new_tokens=20)
    for i, length in enumerate((3, 5))
]


class Recorder(torch.nn.Linear):
    """Keeps what ``generate`` was called with."""

    def __init__(self) -> None:
        super().__init__(1, 1)
        self.calls: list[dict[str, Any]] = []

    def generate(self, **arguments: Any) -> None:
        self.calls.append(arguments)


def fake_run(arm: str) -> Any:
    events: list[Any] = []
    workload = SimpleNamespace(sampling=SamplingConfig(), max_length=32)
    config = SimpleNamespace(experiment=ExperimentConfig())
    task: Any = SimpleNamespace(arm=arm, workload=workload, device="cpu", config=config)
    run: Any = ArmRun(SimpleNamespace(emit=events.append), task, 0.0)  # type: ignore[arg-type]
    run.events = events
    return run


def cache_of(rows: int) -> tuple[Cache, list[tuple[torch.Tensor, torch.Tensor]]]:
    cache = Cache(layers=[StaticLayer(8), StaticLayer(8)])
    cache.early_initialization(rows, 1, 2, torch.float32, torch.device("cpu"))
    return cache, [(layer.keys, layer.values) for layer in cache.layers]


@pytest.mark.parametrize("arm", ["contiguous.batch", ARM])
def test_generate_is_told_whether_to_compile(arm: str) -> None:
    model = Recorder()
    hook: Any = SimpleNamespace(run=fake_run(arm), stops=set(), begin=lambda: None)
    contiguous._generate(model, REQUESTS, None, hook)
    (told,) = model.calls
    assert told["disable_compile"] is (arm != ARM)
    assert isinstance(told.get("compile_config"), CompileConfig) is (arm == ARM)
    assert told["input_ids"].tolist() == [[0, 0, 1, 1, 1], [1] * 5]
    assert told["max_new_tokens"] == 20
    assert told["stopping_criteria"]


@pytest.mark.parametrize("arm", ["contiguous.batch", ARM])
def test_a_few_steps_of_the_same_shape_run_before_the_clock(arm: str) -> None:
    """As many tokens as our engine computes; in the one arm Transformers compiles meanwhile."""
    model, run = Recorder(), fake_run(arm)
    cache, _ = cache_of(2)
    contiguous._warm_up(run, model, REQUESTS, cache)
    (told,) = model.calls
    assert told["disable_compile"] is (arm != ARM)
    assert told["input_ids"].shape == (2, 5)
    assert told[contiguous.CACHE_ARGUMENT] is cache
    (event,) = run.events
    if arm == ARM:
        assert isinstance(event, ModelCompiled)
        assert 2 <= told["max_new_tokens"] < 20
    else:
        assert isinstance(event, ProfileRun)
        assert told["max_new_tokens"] == NEW_TOKENS
        assert (event.requests, event.prompt_tokens, event.kept) == (2, 8, False)


@pytest.mark.parametrize("arm", ["contiguous.batch", ARM])
@pytest.mark.parametrize(("prompt", "room"), [(32, 1), (31, 2)])
def test_what_is_computed_before_the_clock_fits_behind_the_longest_prompt(
    arm: str, prompt: int, room: int
) -> None:
    """A slab has 32 slots; the last token's keys and values are never written."""
    model, run = Recorder(), fake_run(arm)
    full = REQUESTS[0].model_copy(update={"token_ids": [1] * prompt})
    contiguous._warm_up(run, model, [REQUESTS[1], full], cache_of(2)[0])
    assert [told["max_new_tokens"] for told in model.calls] == [room]


def test_compiled_code_finds_the_cache_where_it_was() -> None:
    cache, layers = cache_of(3)
    contiguous.reset_cache(cache, layers, 3)
    assert all(one.keys is pair[0] for one, pair in zip(cache.layers, layers, strict=True))
    assert all(one.values is pair[1] for one, pair in zip(cache.layers, layers, strict=True))
    assert float(layers[0][0][0, 0, 0, 0]) == contiguous.UNWRITTEN
    contiguous.reset_cache(cache, layers, 2)
    assert cache.layers[0].keys.shape[0] == cache.layers[0].batch_size == 2


def test_a_smaller_last_batch_is_as_large_to_compiled_code_and_the_same_in_the_log(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five requests on two slabs. Here, on a CPU, Transformers leaves the model as it is."""
    requests = ((15, 9), (20, 3), (4, 12), (13, 1), (16, 8))
    fitted = with_requests(prepared, requests, slabs=2, max_length=64, block_size=8)
    shapes: list[tuple[int, bool]] = []

    def generate(self: Any, **arguments: Any) -> Any:
        layer = arguments[contiguous.CACHE_ARGUMENT].layers[0]
        shapes.append((arguments["input_ids"].shape[0], layer.keys._base is None))
        return GenerationMixin.generate(self, **arguments)

    monkeypatch.setattr(GPT2LMHeadModel, "generate", generate)
    tokens = []
    for arm, last in (("contiguous.batch", (1, False)), (ARM, (2, True))):
        events = events_of(arm, make_config("tiny-gpt2", (arm,)), fitted)
        assert shapes == [(2, True)] * 3 + [last]  # the first one is before the clock
        shapes.clear()
        (pool,) = (event for event in events if isinstance(event, PoolReserved))
        ledger, witnessed = Ledger(pool_shape(pool)), 0
        for step in (event for event in events if isinstance(event, Step)):
            ledger.apply(step.plan)
            if step.written_slots is not None:
                assert step.written_slots == ledger.written_slots
                witnessed += 1
        assert witnessed > 12
        tokens.append({e.request: e.tokens for e in events if isinstance(e, RequestFinished)})
    assert tokens[0] == tokens[1]
    assert [len(tokens[1][each]) for each in range(5)] == [9, 3, 12, 1, 8]


@pytest.mark.parametrize("compiler", ["gcc", None])
def test_it_is_run_by_its_own_name_and_on_a_gpu_with_a_compiler_alone(
    compiler: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiment.arms.launch.c_compiler", lambda: compiler)
    assert expand_arms([ARM]) == (ARM,)
    assert ARM not in expand_arms(["contiguous"])
    assert group_of(ARM) == group_of("contiguous.batch") == "contiguous"
    assert ARM in FUNCTIONS
    model = ModelPrepared(
        name="m", source="random", architecture="a", parameters=1, weights_sha256="0" * 64,
        dtype="float32", device="cpu", layers=1, kv_heads=1, head_dim=4, element_bytes=4,
        max_positions=64, vocab_size=50, eos_token_id=None,
    )  # fmt: skip
    ready = WorkloadReady(requests=REQUESTS, max_length=32, block_size=4, budget_bytes=1 << 20)
    prepared = Prepared("none", model, ready)
    launch = {
        device: plan_launch(ARM, Config(), device, prepared, Path("none"))
        for device in ("cpu", "cuda")
    }
    assert isinstance(launch["cpu"], Message)
    assert launch["cpu"].key == "skip.compiled"
    if compiler:
        assert isinstance(launch["cuda"], Launch)
    else:
        assert launch["cuda"] == message("skip.no_toolchain")
