"""Kinds of models and caches that Transformers has: what an arm reuses is as new."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from arms_here import events_of, prepare_here
from transformers import (
    AutoModelForCausalLM,
    Cache,
    LlamaConfig,
    cache_utils,
)

from experiment.arms.contiguous import reset_cache
from experiment.arms.contiguous_hooks import UNWRITTEN
from experiment.config.schema import Config
from experiment.events import Event, RequestFinished, Step

ROWS, HEADS, SLOTS, DIM = 2, 2, 8, 4
SHAPE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
STATIC = [
    kind
    for _, kind in inspect.getmembers(cache_utils, inspect.isclass)
    if issubclass(kind, cache_utils.StaticLayer)
]


def advance(layer: Any, tokens: int, seed: int) -> list[torch.Tensor]:
    """What a layer answers to further tokens, by every way in which it may be updated."""
    torch.manual_seed(seed)
    found = [torch.tensor(layer.get_mask_sizes(tokens))]
    found += layer.update(*torch.randn(2, ROWS, HEADS, tokens, DIM))
    found.append(torch.as_tensor(layer.get_seq_length()))
    if hasattr(layer, "update_indexer"):
        found.append(layer.update_indexer(torch.randn(ROWS, tokens, DIM)))
    if hasattr(layer, "update_conv_state"):
        found.append(layer.update_conv_state(torch.randn(ROWS, DIM, tokens), conv_kernel_size=3))
        found.append(layer.update_recurrent_state(torch.randn(ROWS, DIM)))
    return [tensor.clone() for tensor in found]


@pytest.mark.parametrize("kind", STATIC, ids=lambda kind: kind.__name__)
def test_a_layer_that_was_reset_answers_as_a_new_one(kind: Any) -> None:
    used, new = (kind(max_cache_len=SLOTS, sliding_window=SLOTS) for _ in range(2))
    for layer in (used, new):
        layer.lazy_initialization(*torch.zeros(2, ROWS, HEADS, SLOTS, DIM))
        layer.keys.fill_(UNWRITTEN)
        layer.values.fill_(UNWRITTEN)
    for seed, tokens in enumerate((5, 1, 1)):
        advance(used, tokens, seed)
    reset_cache(Cache(layers=[used]), [(used.keys, used.values)], ROWS)
    for seed, tokens in enumerate((3, 1, 4), 10):
        for got, wanted in zip(
            advance(used, tokens, seed), advance(new, tokens, seed), strict=True
        ):
            assert torch.equal(got, wanted)


def directory_of(place: Path) -> Path:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(LlamaConfig(**SHAPE), dtype=torch.float32)
    model.save_pretrained(place / "llama")
    return place / "llama"


def run_arms(
    directory: Path, lengths: list[tuple[int, int]], arms: tuple[str, ...], budget: int
) -> dict[str, list[Event]]:
    """Events of each arm, run in this process on a model without tokenizer."""
    config = Config.model_validate(
        {
            "model": {"name": str(directory)},
            "workload": {"lengths": lengths},
            "cache": {"max_length": 64, "block_size": 4, "budget": budget},
            "engine": {"kernel": "torch", "packed_weights": False},
            "run": {"arms": list(arms), "device": "cpu", "threads": 1},
        }
    )
    made = prepare_here(config)
    return {arm: events_of(arm, config, made) for arm in arms}


def tokens(events: list[Event]) -> dict[int, list[int]]:
    return {e.request: e.tokens for e in events if isinstance(e, RequestFinished)}


def batches(events: list[Event]) -> list[list[int]]:
    plans = [event.plan for event in events if isinstance(event, Step)]
    starts = [[chunk.request for chunk in plan.chunks if not chunk.start] for plan in plans]
    return [start for start in starts if start]


CONTIGUOUS = ("contiguous.sequential", "contiguous.batch", "contiguous.growing")
SLAB = 2 * 2 * 2 * 8 * 4 * 64  # K and V, 2 layers, 2 heads of 8, fp32, 64 slots


@pytest.mark.parametrize(
    ("lengths", "waves"),
    [
        ([(64, 1), (5, 1)], [[0, 1]]),  # a first run of more new tokens has no room
        ([(63, 2), (62, 3), (1, 1)], [[0], [1, 2]]),
        ([(60, 1), (5, 50), (8, 9)], [[0], [1, 2]]),  # padded to 60, the second would need 109
    ],
)  # fmt: skip
def test_nothing_is_written_behind_the_maximum_length(
    lengths: list[tuple[int, int]], waves: list[list[int]], tmp_path: Path
) -> None:
    arms = (*CONTIGUOUS, "slabs", "paged", "transformers_paged")
    seen = run_arms(directory_of(tmp_path), lengths, arms, budget=4 * SLAB)
    assert batches(seen["contiguous.batch"]) == waves
    assert all(tokens(events) == tokens(seen["paged"]) for events in seen.values())
