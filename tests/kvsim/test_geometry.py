"""Bytes per token against the caches of real models, and how many requests fit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    GPT2Config,
    LlamaConfig,
    PretrainedConfig,
    Qwen2Config,
)

from kvsim.core.blocks import BlockPool, blocks_needed
from kvsim.core.request import final_tokens
from kvsim.core.scheduler import Request, Scheduler, SchedulerConfig
from kvsim.sizing.geometry import KVGeometry, geometry_from_config, max_concurrent_requests

SHAPE: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 24,
    "intermediate_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
}
CONFIGS = {
    "gpt2": GPT2Config(n_layer=2, n_embd=24, n_head=3, vocab_size=40, n_positions=32),
    "llama": LlamaConfig(**SHAPE),
    "llama with heads of another size": LlamaConfig(**SHAPE, head_dim=10),
    "llama ungrouped": LlamaConfig(**{**SHAPE, "num_key_value_heads": 6}),
    "qwen2": Qwen2Config(**SHAPE),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_the_formula_is_the_size_of_a_real_cache(
    config: PretrainedConfig, dtype: torch.dtype
) -> None:
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    cache = DynamicCache(config=config)
    tokens = 7
    with torch.inference_mode():
        model(input_ids=torch.arange(tokens)[None], past_key_values=cache)
    held = sum(t.nbytes for layer in cache.layers for t in (layer.keys, layer.values))
    geometry = geometry_from_config(config.to_dict(), dtype.itemsize)
    assert geometry.bytes_per_token * tokens == held
    keys = cache.layers[0].keys
    assert keys.shape == (1, geometry.kv_heads, tokens, geometry.head_dim)
    assert len(cache.layers) == geometry.layers


def test_gpt2_takes_72_kib_for_a_token_in_fp32() -> None:
    geometry = geometry_from_config(GPT2Config().to_dict(), 4)
    assert geometry == KVGeometry(layers=12, kv_heads=12, head_dim=64, element_bytes=4)
    assert geometry.bytes_per_token == 72 * 1024


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


def test_blocks_in_counts_whole_blocks_only() -> None:
    geometry = KVGeometry(1, 1, 2, 4)  # 16 bytes a slot
    assert [geometry.blocks_in(budget, 4) for budget in (63, 64, 127, 128)] == [0, 1, 1, 2]


@given(prompt=st.integers(1, 30), new=st.integers(1, 20), size=st.integers(1, 9))
def test_final_tokens_is_what_a_run_computes(prompt: int, new: int, size: int) -> None:
    scheduler = Scheduler(BlockPool(60, size), SchedulerConfig())
    scheduler.add(Request(0, prompt, new))
    computed = 0
    while scheduler.has_work:
        plan = scheduler.schedule()
        computed += plan.tokens
        scheduler.complete(plan)
    assert computed == final_tokens(prompt, new)


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
