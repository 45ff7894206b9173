"""Small random models of four families, and their tokens by plain Transformers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
)

from experiment.engine.attention.interface import ATTENTION

VOCABULARY = 97
POSITIONS = 64
# At a width of 32, tokens hardly depend on distant ones with 0.08. The scale of an activation grows
# with range * sqrt(width): this corresponds to about 0.08 at GPT-2's width of 768.
RANGE = 0.3
GROUPED: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": POSITIONS,
    "initializer_range": RANGE,
    "bos_token_id": None,
    "eos_token_id": None,
}


def _gpt2() -> PretrainedConfig:
    return GPT2Config(
        n_layer=2,
        n_embd=32,
        n_head=4,
        n_positions=POSITIONS,
        vocab_size=VOCABULARY,
        initializer_range=RANGE,
        bos_token_id=None,
        eos_token_id=None,
    )


CONFIGS: dict[str, Callable[[], PretrainedConfig]] = {
    "gpt2": _gpt2,
    "llama": lambda: LlamaConfig(**GROUPED),
    "qwen2": lambda: Qwen2Config(**GROUPED),
    "mistral": lambda: MistralConfig(sliding_window=None, **GROUPED),
}
FAMILIES = tuple(CONFIGS)


def build(config: PretrainedConfig, attention: str = ATTENTION) -> Any:
    """Create a random model; the same config gives the same weights."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        config, attn_implementation=attention, dtype=torch.float32
    )
    return model.eval().requires_grad_(False)


@cache
def tiny(family: str, attention: str = ATTENTION) -> Any:
    """The model of a family; cached, do not modify."""
    return build(CONFIGS[family](), attention)


def plain_tokens(model: Any, prompt: Sequence[int], new_tokens: int) -> list[int]:
    """Tokens that Transformers' greedy ``generate`` appends to one prompt."""
    ids = torch.tensor([list(prompt)], device=model.device)
    # Without a mask `generate` hides every token that equals the pad token.
    out = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new_tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    tokens: list[int] = out[0, len(prompt) :].tolist()
    return tokens
