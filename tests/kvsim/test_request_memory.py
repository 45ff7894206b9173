"""Memory of a request against its length: counted token by token, and beside Transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, StaticCache

from kvsim.sizing.layers import Serving, layer_caches
from kvsim.sizing.layout import LayerCache, lay_out
from kvsim.sizing.models import MODELS
from kvsim.sizing.request_memory import group_blocks, held_blocks, live_bytes, request_memory

SHAPE: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "vocab_size": 97,
}  # fmt: skip
TYPES: list[dict[str, Any]] = [
    {"model_type": "llama"},
    {"model_type": "gemma2", "sliding_window": 32},
    {"model_type": "gemma3_text", "sliding_window": 32, "num_hidden_layers": 6},
    {"model_type": "gpt_oss", "sliding_window": 48},
    {"model_type": "llama4_text", "attention_chunk_size": 32},
]


@pytest.mark.parametrize("published", TYPES, ids=lambda config: config["model_type"])
@pytest.mark.parametrize("length", [16, 48, 128])
def test_a_static_cache_has_so_many_bytes(published: dict[str, Any], length: int) -> None:
    values = {**SHAPE, **published}
    given = {key: value for key, value in values.items() if key != "model_type"}
    config = AutoConfig.for_model(values["model_type"], **given)
    cache = StaticCache(config=config, max_cache_len=length)
    cache.early_initialization(1, 2, 16, torch.float32, torch.device("cpu"))
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    caches = layer_caches(values, Serving(kv_bytes=4))
    found = request_memory(caches, lay_out(caches), np.array([length]), 16)
    assert int(found["static"][0]) == held


@given(
    kind=st.sampled_from(["full", "window", "chunked"]), span=st.integers(1, 40),
    size=st.integers(1, 9), length=st.integers(1, 200),
)  # fmt: skip
def test_blocks_are_those_in_which_the_next_token_finds_something(
    kind: Any, span: int, size: int, length: int
) -> None:
    cache = LayerCache(kind, 1, size, span if kind != "full" else 0)
    newest = length - 1
    seen = {
        "full": range(length),
        "window": range(max(0, newest - span + 1), length),
        "chunked": range(newest // span * span, length),
    }[kind]
    at = np.array([length])
    assert held_blocks(at, size, cache)[0] == len({token // size for token in seen})
    assert live_bytes([cache], at)[0] == len(seen)


@pytest.mark.parametrize("name", MODELS)
def test_no_way_takes_less_than_what_lives(name: str) -> None:
    caches = MODELS[name].caches()
    layout, lengths = lay_out(caches), np.array([1, 100, 5_000, 100_000])
    live = live_bytes(caches, lengths)
    found = request_memory(caches, layout, lengths, 16)
    assert all((found[way] >= live).all() for way in found)
    assert (found["groups"] >= found["exact"]).all()
    assert (group_blocks(layout, lengths) > 0).all()
