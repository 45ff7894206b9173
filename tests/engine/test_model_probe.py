"""Which models the engine refuses: by what they do when they run, not by their name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_engine import geometry, solo
from transformers import (
    BloomConfig,
    Gemma2Config,
    GptOssConfig,
    MistralConfig,
    MptConfig,
    PretrainedConfig,
)

from experiment.engine.attention.interface import (
    ATTENTION,
    PagedStep,
    UnsupportedModelError,
    paged_attention,
)
from experiment.engine.engine import Engine
from experiment.engine.kv_pool import KVPool
from experiment.engine.model_runner import ModelRunner, probe
from experiment.gpucheck.tiny_models import FAMILIES, GROUPED, build, tiny
from kvsim.sizing.geometry import KVGeometry, geometry_from_config

SHAPE = KVGeometry(layers=2, kv_heads=2, head_dim=4, element_bytes=4)


def refusal(model: Any, shape: KVGeometry = SHAPE) -> str:
    """The feature for which the model is refused."""
    with pytest.raises(UnsupportedModelError) as caught:
        probe(model, shape)
    return caught.value.feature


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_that_goes_through_the_interface_is_accepted(family: str) -> None:
    model = tiny(family)
    probe(model, geometry(family))
    assert model.config._attn_implementation == ATTENTION  # as it was before


CONFIGS: dict[str, tuple[PretrainedConfig, set[str]]] = {
    "mistral": (MistralConfig(sliding_window=4, **GROUPED), {"sliding_window"}),
    "gemma2": (
        Gemma2Config(**GROUPED, head_dim=8, sliding_window=4),
        {"softcap", "sliding_window"},
    ),
    "gpt-oss": (
        GptOssConfig(**GROUPED, head_dim=8, sliding_window=4, num_local_experts=2),
        {"s_aux", "sliding_window"},
    ),
}


@pytest.mark.parametrize(("config", "features"), CONFIGS.values(), ids=CONFIGS)
def test_a_model_that_asks_for_more_than_the_engine_does_is_refused(
    config: PretrainedConfig, features: set[str]
) -> None:
    shape = geometry_from_config(config.to_dict(), 4)
    assert refusal(build(config), shape) in features


@pytest.mark.parametrize(
    "config",
    [
        BloomConfig(vocab_size=97, hidden_size=32, n_layer=2, n_head=4),
        MptConfig(vocab_size=97, d_model=32, n_layers=2, n_heads=4),  # fails: it needs a mask
    ],
    ids=lambda config: config.model_type,
)
def test_a_model_that_takes_the_name_and_never_calls_us_is_refused(
    config: PretrainedConfig,
) -> None:
    shape = geometry_from_config(config.to_dict(), 4)
    assert refusal(build(config), shape) == "attention_interface"


class FakeModel(torch.nn.Module):
    """Calls our attention for the layers that it is told, with the arguments that it is told."""

    def __init__(self, layers: list[int], **arguments: Any) -> None:
        super().__init__()
        self.config = SimpleNamespace(_attn_implementation=ATTENTION)
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.layers = layers
        self.arguments = arguments

    def forward(
        self,
        input_ids: torch.Tensor,
        paged_step: PagedStep | None = None,
        logits_to_keep: torch.Tensor | None = None,
        **_: Any,
    ) -> SimpleNamespace:
        count = input_ids.shape[1]
        states = torch.ones(1, SHAPE.kv_heads, count, SHAPE.head_dim)
        arguments = {"attention_mask": None, "paged_step": paged_step, **self.arguments}
        for layer in self.layers if paged_step else ():
            module = SimpleNamespace(layer_idx=layer)
            paged_attention(module, states, states, states, **arguments)
        return SimpleNamespace(logits=torch.ones(1, 1, 5))

    def set_attn_implementation(self, name: str) -> None:
        pass


def test_the_fake_model_is_accepted_when_it_behaves() -> None:
    probe(FakeModel([0, 1]), SHAPE)
    probe(FakeModel([1, 0], is_causal=True, position_ids=torch.zeros(1), s_aux=None), SHAPE)


@pytest.mark.parametrize(
    "layers", [[], [0], [0, 0], [0, 1, 1], [0, 0, 1], [0, 1, 0, 1]], ids=lambda x: str(x)
)
def test_each_layer_must_call_exactly_once(layers: list[int]) -> None:
    assert refusal(FakeModel(layers)) == "attention_interface"


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("attention_mask", torch.ones(1, 1, 7, 7)),
        ("softcap", 30.0),
        ("s_aux", torch.zeros(2)),
        ("dropout", 0.1),
        ("head_mask", torch.ones(2)),
        ("something_new", "x"),
    ],
)
def test_an_argument_that_would_change_the_result_is_refused(argument: str, value: Any) -> None:
    assert refusal(FakeModel([0, 1], **{argument: value})) == argument


def test_a_model_that_drops_keyword_arguments_is_refused() -> None:
    assert refusal(FakeModel([0, 1], paged_step=None)) == "paged_step"


class Shifted(FakeModel):
    """Gives other logits with our attention than with its own."""

    def forward(self, *args: Any, paged_step: Any = None, **others: Any) -> SimpleNamespace:
        out = super().forward(*args, paged_step=paged_step, **others)
        out.logits[..., 2] += 0.01 if paged_step else 0.0
        return out


def test_a_model_whose_logits_differ_is_refused() -> None:
    assert refusal(Shifted([0, 1])) == "logits"


def test_a_window_that_no_sequence_outgrows_is_accepted_and_a_longer_sequence_refused() -> None:
    config = MistralConfig(sliding_window=16, **GROUPED)
    model = build(config)
    shape = geometry_from_config(config.to_dict(), 4)
    probe(model, shape)
    pool = KVPool(shape, 8, 4, torch.float32, torch.device("cpu"))
    engine = Engine(ModelRunner(model, pool))
    prompt = list(range(1, 13))
    engine.add(0, prompt, 10)
    for _ in range(5):  # the fifth token is computed from 16 positions
        engine.step()
    assert engine.generated(0) == solo("mistral", prompt, 5)
    with pytest.raises(UnsupportedModelError, match="sliding_window"):
        engine.step()
