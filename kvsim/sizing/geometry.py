"""How many bytes a token's keys and values take, from the shape of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvsim.core.blocks import blocks_needed
from kvsim.sizing.windows import UnsupportedGeometryError, sliding_layers

__all__ = [
    "KVGeometry",
    "UnsupportedGeometryError",
    "geometry_from_config",
    "requests_that_fit",
]

_RECURRENT_TYPES = (
    "bamba", "falcon_h1", "falcon_mamba", "jamba", "mamba", "mamba2", "nemotron_h",
    "recurrent_gemma", "rwkv", "xlstm", "zamba", "zamba2",
)  # fmt: skip
# Fields that, when set, mean a cache of another shape.
_REFUSED_FIELDS = {
    "is_encoder_decoder": "encoder_decoder",
    "num_kv_shared_layers": "shared_layers",
    "global_head_dim": "head_sizes",
    "num_global_key_value_heads": "head_sizes",
    "index_head_dim": "indexer",
    "cross_attention_layers": "cross_attention",
}


@dataclass(frozen=True, slots=True)
class KVGeometry:
    """Shape of a KV cache: every layer keeps a key and a value per KV head and token.

        layer 0   K [kv_heads, head_dim]   V [kv_heads, head_dim]     a slot of one token is
        layer 1   K                        V                          all of this together
        ...

    Latent attention (DeepSeek's MLA) keeps one vector for both instead: ``tensors`` is 1.

    Attributes:
        head_dim: elements of one head; of a latent vector, its rank and its rotary part.
        tensors: 2 for keys and values.
        sliding_layers: how many of ``layers`` have a window.
        window: tokens that those layers keep, the newest included.
        scale_bytes: what a quantised cache adds for each block, layer, KV head and K or V.
    """

    layers: int
    kv_heads: int
    head_dim: int
    element_bytes: int
    tensors: int = 2
    sliding_layers: int = 0
    window: int | None = None
    scale_bytes: int = 0

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one slot: 2 x layers x KV heads x head size x element size.

        Windows do not count: it is what a token takes while no layer has forgotten it, and
        what a pool with one table for all layers gives to each.
        """
        return self.layers * self.layer_bytes

    @property
    def layer_bytes(self) -> int:
        """Bytes of one token in one layer."""
        return self.tensors * self.kv_heads * self.head_dim * self.element_bytes

    @property
    def scales_per_block(self) -> int:
        """Bytes of one block that belong to no slot: layers x (K and V) x KV heads x scale size."""
        return self.layers * self.tensors * self.kv_heads * self.scale_bytes

    def block_bytes(self, block_size: int) -> int:
        """Bytes of a block of ``block_size`` slots, its scales included."""
        return block_size * self.bytes_per_token + self.scales_per_block

    def blocks_in(self, budget_bytes: int, block_size: int) -> int:
        """Whole blocks of ``block_size`` slots that fit in ``budget_bytes``."""
        return budget_bytes // self.block_bytes(block_size)


def geometry_from_config(config: Mapping[str, Any], element_bytes: int) -> KVGeometry:
    """Read the geometry from a Transformers config given as a mapping.

    GPT-2 spells its sizes ``n_layer``, ``n_head`` and ``n_embd``, MPT in its own way; other
    decoders follow Llama. ``head_dim`` given apart wins over hidden size / heads. A config that
    wraps that of its language model (``text_config``) is read there.

    Raises:
        UnsupportedGeometryError: a cache of another kind; says which.
        ValueError: a size is missing, so that any figure would be a guess.
    """
    inner = config.get("text_config")
    if isinstance(inner, Mapping) and "num_hidden_layers" not in config:
        return geometry_from_config(inner, element_bytes)
    _check_kind(config)
    layers = _first(config, "num_hidden_layers", "n_layer", "n_layers")
    sliding, window = sliding_layers(config, layers)
    rank = config.get("kv_lora_rank")
    if rank:
        kv_heads, tensors = 1, 1
        head_dim = int(rank) + _first(config, "qk_rope_head_dim")
    else:
        heads = _first(config, "num_attention_heads", "n_head", "n_heads")
        kv_heads, tensors = _kv_heads(config, heads), 2
        head_dim = _head_dim(config, heads)
    return KVGeometry(layers, kv_heads, head_dim, element_bytes, tensors, sliding, window)


def _check_kind(config: Mapping[str, Any]) -> None:
    for name, reason in _REFUSED_FIELDS.items():
        if config.get(name):
            raise UnsupportedGeometryError(reason, name)
    types = config.get("layer_types")
    if not types and config.get("model_type") in _RECURRENT_TYPES:
        raise UnsupportedGeometryError("recurrent", str(config["model_type"]))
    if not types and config.get("attention_chunk_size"):
        raise UnsupportedGeometryError("chunked", "attention_chunk_size")


def _kv_heads(config: Mapping[str, Any], heads: int) -> int:
    """Heads that keys and values are kept for.

    Falcon and GPTBigCode say it by flags: one for all (``multi_query``), or with Falcon's new
    decoder architecture groups of their own number. (Transformers keeps the groups of that one
    repeated for every head; engines that are built for it do not.)
    """
    if config.get("new_decoder_architecture"):
        return _first(config, "num_kv_heads", "n_head_kv")
    if config.get("multi_query"):
        return 1
    attention = config.get("attn_config")
    nested = attention.get("kv_n_heads") if isinstance(attention, Mapping) else None
    given = config.get("num_key_value_heads") or nested or heads
    if not isinstance(given, int):
        raise UnsupportedGeometryError("head_sizes", f"num_key_value_heads: {given!r}")
    return given


def _head_dim(config: Mapping[str, Any], heads: int) -> int:
    hidden = config.get("head_dim")
    size = int(hidden) if hidden else _first(config, "hidden_size", "n_embd", "d_model") // heads
    values = config.get("v_head_dim")
    if values and values != size:
        raise UnsupportedGeometryError("head_sizes", f"v_head_dim {values} beside {size}")
    return size


def requests_that_fit(
    lengths: list[int], blocks: int, block_size: int, shared: Sequence[int] = ()
) -> int:
    """How many requests of the given final lengths, repeated in order, ``blocks`` can hold at once.

    ``lengths`` are slots per request (see :func:`final_tokens`). ``shared``, where given, says how
    many positions at the beginning of each are those of the request before it: whole blocks of
    these are not taken again.

    Raises:
        ValueError: no lengths, or one below 1.
    """
    if not lengths or min(lengths) < 1:
        raise ValueError("lengths must be positive")
    per_cycle = [blocks_needed(length, block_size) for length in lengths]
    if shared:
        per_cycle = [
            need - same // block_size for need, same in zip(per_cycle, shared, strict=True)
        ]
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
