"""How many requests fit: by arithmetic, as vLLM printed them, and by layers of different kinds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, StaticCache

from kvsim.accounting.ledger import Ledger, PoolShape, SlotState
from kvsim.core.blocks import blocks_needed
from kvsim.sizing.geometry import KVGeometry, geometry_from_config, max_concurrent_requests
from kvsim.sizing.layers import Serving, layer_caches
from kvsim.sizing.layout import LayerCache, lay_out
from kvsim.sizing.models import MODELS
from kvsim.sizing.request_memory import group_blocks, held_blocks, live_bytes, request_memory
from kvsim.sizing.vllm_capacity import vllm_block_size, vllm_capacity


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"n_layer": 2, "n_head": 2},
        {"n_layer": 2, "n_embd": 8},
        {"n_head": 2, "n_embd": 8},
        {"n_layer": 0, "n_head": 2, "n_embd": 8},
    ],
)
def test_a_missing_size_is_an_error_not_a_guess(config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="has none of"):
        geometry_from_config(config, 4)


def fit_one_by_one(lengths: list[int], blocks: int, size: int) -> int:
    """Take requests in order, over and over, until one does not fit."""
    fitting = used = 0
    while True:
        used += blocks_needed(lengths[fitting % len(lengths)], size)
        if used > blocks:
            return fitting
        fitting += 1


@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=6),
    blocks=st.integers(0, 200),
    size=st.integers(1, 20),
)
def test_requests_that_fit_is_what_taking_them_one_by_one_gives(
    lengths: list[int], blocks: int, size: int
) -> None:
    assert max_concurrent_requests(lengths, blocks, size) == fit_one_by_one(lengths, blocks, size)


def test_samples_of_one_prompt_take_its_whole_blocks_once() -> None:
    """Prompts of 9 and 2 final slots more: 3 blocks of 4, of which 2 hold prompt alone."""
    lengths, shared = [11, 11, 11], [0, 9, 9]
    assert max_concurrent_requests(lengths, 9, 4) == 3
    assert max_concurrent_requests(lengths, 5, 4, shared) == 3
    assert max_concurrent_requests(lengths, 9, 4, shared) == 5
    assert max_concurrent_requests(lengths, 10, 4, shared) == 6
    assert (
        max_concurrent_requests(lengths, 3, 512, shared)
        == max_concurrent_requests(lengths, 3, 512)
        == 3
    )


@pytest.mark.parametrize("lengths", [[], [0], [3, 0], [-1]])
def test_lengths_that_hold_nothing_are_refused(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="positive"):
        max_concurrent_requests(lengths, 10, 4)


GPT2_FP32 = KVGeometry(12, 12, 64, 4)


@pytest.mark.parametrize(
    ("blocks", "block_size", "max_length", "tokens", "concurrency"),
    [
        (32_958, 16, 512, "527,328", "1029.94"),  # GPT-2 in bf16, 18.10 GiB
        (GPT2_FP32.blocks_in(2 << 30, 128), 128, 512, "29,056", "56.75"),
        (273_184 // 16, 16, 32_768, "273,184", "8.34"),  # 36 layers, 2 KV heads of 128: 9.38 GiB
        (64, 32, 500, "2,000", "4.00"),  # not blocks times block size
        (64, 32, 512, "2,048", "4.00"),
    ],
)
def test_what_vllm_printed(
    blocks: int, block_size: int, max_length: int, tokens: str, concurrency: str
) -> None:
    found = vllm_capacity(blocks, block_size, max_length)
    assert (f"{found.tokens:,}", f"{found.max_concurrency:.2f}") == (tokens, concurrency)


@pytest.mark.parametrize(("blocks", "starts"), [(16, False), (17, True)])
def test_the_null_block_must_fit_beside_one_request(blocks: int, starts: bool) -> None:
    """Seen: 37,748,736 bytes are 16 blocks of 32 slots of GPT-2, and 512 tokens are refused."""
    budget = blocks * 32 * GPT2_FP32.bytes_per_token
    assert vllm_capacity(GPT2_FP32.blocks_in(budget, 32), 32, 512).starts is starts


@pytest.mark.parametrize(
    ("device", "size", "rounded"),
    [
        ("cpu", 1, 32), ("cpu", 16, 32), ("cpu", 32, 32), ("cpu", 33, 64), ("cpu", 128, 128),
        ("cuda", 1, 16), ("cuda", 8, 16), ("cuda", 16, 16), ("cuda", 17, 32), ("cuda", 48, 48),
    ],
)  # fmt: skip
def test_block_sizes_of_a_device(device: str, size: int, rounded: int) -> None:
    assert vllm_block_size(size, device) == rounded


def test_blocks_of_the_engine_are_neither_free_nor_handed_out() -> None:
    counts = Ledger(PoolShape(4, 8, 1, watermark_blocks=1, engine_blocks=1)).counts()
    assert (counts.reserved, counts.allocated) == (32, 0)
    assert {state: counts[state] for state in SlotState if counts[state]} == {
        SlotState.ENGINE: 8,
        SlotState.WATERMARK: 8,
        SlotState.FREE: 16,
    }


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
