"""How many bytes a token's keys and values take, from the shape of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvsim.blocks import blocks_needed


@dataclass(frozen=True, slots=True)
class KVGeometry:
    """Shape of a KV cache: every layer keeps a key and a value per KV head and token."""

    layers: int
    kv_heads: int
    head_dim: int
    element_bytes: int

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one slot: 2 x layers x KV heads x head size x element size."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.element_bytes

    def blocks_in(self, budget_bytes: int, block_size: int) -> int:
        """Whole blocks of ``block_size`` slots that fit in ``budget_bytes``."""
        return budget_bytes // (block_size * self.bytes_per_token)


def geometry_from_config(config: Mapping[str, Any], element_bytes: int) -> KVGeometry:
    """Read the geometry from a Transformers config given as a mapping.

    GPT-2 spells its sizes ``n_layer``, ``n_head`` and ``n_embd``; other decoders follow Llama.
    ``head_dim`` given apart wins over hidden size / heads.

    Raises:
        ValueError: a size is missing, so that any figure would be a guess.
    """
    layers = _first(config, "num_hidden_layers", "n_layer")
    heads = _first(config, "num_attention_heads", "n_head")
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or _first(config, "hidden_size", "n_embd") // heads
    return KVGeometry(layers, int(kv_heads), int(head_dim), element_bytes)


def final_tokens(prompt_tokens: int, new_tokens: int) -> int:
    """Slots that a request holds at its end: the last token's K and V are never written."""
    return prompt_tokens + new_tokens - 1


def requests_that_fit(lengths: list[int], blocks: int, block_size: int) -> int:
    """How many requests of the given final lengths, repeated in order, ``blocks`` can hold at once.

    ``lengths`` are slots per request (see :func:`final_tokens`).
    """
    if not lengths or min(lengths) < 1:
        raise ValueError("lengths must be positive")
    per_cycle = [blocks_needed(length, block_size) for length in lengths]
    cycles, left = divmod(blocks, sum(per_cycle))
    fitting = cycles * len(lengths)
    for need in per_cycle:
        if need > left:
            break
        left -= need
        fitting += 1
    return fitting


def _first(config: Mapping[str, Any], *names: str) -> int:
    for name in names:
        value = config.get(name)
        if value:
            return int(value)
    raise ValueError(f"the model's config has none of: {', '.join(names)}")
