"""Bytes of K and V per token, from the shape of a model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvsim.core.blocks import blocks_needed
from kvsim.sizing.windows import UnsupportedGeometryError, sliding_layers

__all__ = [
    "KVGeometry",
    "UnsupportedGeometryError",
    "geometry_from_config",
    "max_concurrent_requests",
]

_RECURRENT_TYPES = (
    "bamba", "falcon_h1", "falcon_mamba", "jamba", "mamba", "mamba2", "nemotron_h",
    "recurrent_gemma", "rwkv", "xlstm", "zamba", "zamba2",
)  # fmt: skip
# Config fields that mean a KV cache of another shape.
_REFUSED_FIELDS = {
    "is_encoder_decoder": "encoder_decoder",
    "num_kv_shared_layers": "shared_layers",
    "global_head_dim": "head_sizes",
    "num_global_key_value_heads": "head_sizes",
    "index_head_dim": "indexer",
    "cross_attention_layers": "cross_attention",
}
# Names of fields that the shape of a cache may depend on: read here, or harmless, since they are of
# queries alone or only mask.
_MATTERS = re.compile(
    r"(^|_)kv(_|$)|key_value|(query|attention)_group|window|(^|_)heads?(_|$)|head_(dim|size)|chunk"
)
_KNOWN = frozenset(
    re.findall(
        r"\S+",
        """
    num_attention_heads n_head n_heads num_heads attention_heads num_key_value_heads num_kv_heads
    n_head_kv n_kv_heads kv_n_heads multi_query_group_num num_attention_groups head_dim kv_channels
    kv_lora_rank qk_rope_head_dim v_head_dim sliding_window max_window_layers window_size
    sliding_window_pattern _sliding_window_pattern attention_chunk_size num_kv_shared_layers
    global_head_dim num_global_key_value_heads index_head_dim
    qk_nope_head_dim qk_head_dim index_n_heads chunk_size_feed_forward keep_window_size
    num_attention_heads_per_layer num_key_value_groups prefix_dense_sliding_window_pattern
    """,
    )
)
# Sizes of a layer's cache, which a config may override for single layers.
_CACHE_SIZES = ("head_dim", "num_key_value_heads", "v_head_dim", "kv_lora_rank", "qk_rope_head_dim")


@dataclass(frozen=True, slots=True)
class KVGeometry:
    """Shape of a KV cache: each layer has one key and one value per KV head and token.

        layer 0   K [kv_heads, head_dim]   V [kv_heads, head_dim]     one slot (token) spans
        layer 1   K                        V                          all layers
        ...

    Latent attention (DeepSeek's MLA) has one vector for both: ``tensors`` is 1.

    Attributes:
        head_dim: elements of one head; for MLA, latent rank + rotary part.
        tensors: 2 for K and V, 1 for MLA.
        sliding_layers: how many of ``layers`` have a sliding window.
        window: tokens in the window, the newest included.
        scale_bytes: bytes of one scale of a quantised cache (per block, layer, KV head and K/V).
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

        Ignores sliding windows, like a pool with one block table for all layers.
        """
        return self.layers * self.layer_bytes

    @property
    def layer_bytes(self) -> int:
        """Bytes of one token in one layer."""
        return self.tensors * self.kv_heads * self.head_dim * self.element_bytes

    @property
    def scales_per_block(self) -> int:
        """Bytes of scales in one block: layers x (K and V) x KV heads x scale size."""
        return self.layers * self.tensors * self.kv_heads * self.scale_bytes

    def block_bytes(self, block_size: int) -> int:
        """Return the bytes of a block of ``block_size`` slots, scales included."""
        return block_size * self.bytes_per_token + self.scales_per_block

    def blocks_in(self, budget_bytes: int, block_size: int) -> int:
        """Return the whole blocks of ``block_size`` slots that fit in ``budget_bytes``."""
        return budget_bytes // self.block_bytes(block_size)


def geometry_from_config(config: Mapping[str, Any], element_bytes: int) -> KVGeometry:
    """Read the geometry from a Transformers config given as a mapping.

    Knows the field names of Llama, GPT-2 and MPT. ``head_dim`` takes precedence over hidden size
    / heads. If the config nests its language model (``text_config``), reads that.

    Raises:
        UnsupportedGeometryError: another kind of cache, with the reason.
        ValueError: a size is missing.
    """
    inner = config.get("text_config")
    if isinstance(inner, Mapping) and "num_hidden_layers" not in config:
        return geometry_from_config(inner, element_bytes)
    _check_kind(config)
    layers = first_of(config, "num_hidden_layers", "n_layer", "n_layers", "num_layers")
    sliding, window = sliding_layers(config, layers)
    rank = config.get("kv_lora_rank")
    if rank:
        kv_heads, tensors = 1, 1
        head_dim = int(rank) + first_of(config, "qk_rope_head_dim")
    else:
        heads = first_of(
            config, "num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"
        )
        kv_heads, tensors = kv_heads_of(config, heads), 2
        head_dim = head_dim_of(config, heads)
    _check_keys(config)
    return KVGeometry(layers, kv_heads, head_dim, element_bytes, tensors, sliding, window)


def _check_kind(config: Mapping[str, Any]) -> None:
    for name, reason in _REFUSED_FIELDS.items():
        if config.get(name):
            raise UnsupportedGeometryError(reason, name)
    for layer, values in (config.get("per_layer_config") or {}).items():
        for name in _CACHE_SIZES:
            if name in values and values[name] != config.get(name):
                raise UnsupportedGeometryError("head_sizes", f"per_layer_config.{layer}.{name}")
    types = config.get("layer_types")
    if not types and config.get("model_type") in _RECURRENT_TYPES:
        raise UnsupportedGeometryError("recurrent", str(config["model_type"]))
    if not types and config.get("attention_chunk_size"):
        raise UnsupportedGeometryError("chunked", "attention_chunk_size")


def _check_keys(config: Mapping[str, Any]) -> None:
    """Refuse sizes that these formulas do not read and whose names say that the cache has them."""
    for name, value in config.items():
        is_size = isinstance(value, int | list | dict) and not isinstance(value, bool) and value
        if is_size and _MATTERS.search(name) and name not in _KNOWN:
            raise UnsupportedGeometryError("unknown_key", name)


def kv_heads_of(config: Mapping[str, Any], heads: int) -> int:
    """Return the number of KV heads.

    Falcon and GPTBigCode use flags: ``multi_query`` means one, Falcon's new decoder architecture
    has its own count. (Transformers repeats these for every head; serving engines do not.)
    """
    if config.get("new_decoder_architecture"):
        return first_of(config, "num_kv_heads", "n_head_kv")
    if config.get("multi_query"):
        return 1
    attention = config.get("attn_config")
    nested = attention.get("kv_n_heads") if isinstance(attention, Mapping) else None
    groups = config.get("multi_query_attention", True) and config.get("multi_query_group_num")
    given = (
        config.get("num_key_value_heads")
        or nested
        or groups  # ChatGLM
        or config.get("num_attention_groups")  # Step
        or config.get("n_kv_heads")
        or heads
    )
    if not isinstance(given, int):
        raise UnsupportedGeometryError("head_sizes", f"num_key_value_heads: {given!r}")
    return given


def head_dim_of(config: Mapping[str, Any], heads: int) -> int:
    hidden = first_named(config, "head_dim", "attention_head_dim", "kv_channels")
    size = int(hidden) if hidden else first_of(config, "hidden_size", "n_embd", "d_model") // heads
    values = config.get("v_head_dim")
    if values and values != size:
        raise UnsupportedGeometryError("head_sizes", f"v_head_dim {values} beside {size}")
    return size


def max_concurrent_requests(
    lengths: list[int], blocks: int, block_size: int, shared: Sequence[int] = ()
) -> int:
    """Return the maximum number of concurrent requests in ``blocks``, all at their final lengths.

    ``lengths`` are slots per request (see :func:`kvsim.core.request.final_tokens`), repeated in
    order. ``shared`` gives the leading positions that each request shares with the one before it;
    whole blocks of these are not counted again.

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


def first_named(config: Mapping[str, Any], *names: str) -> Any:
    """Return the first field that has a value; None without one."""
    return next((config[name] for name in names if config.get(name)), None)


def first_of(config: Mapping[str, Any], *names: str) -> int:
    for name in names:
        value = config.get(name)
        if value:
            return int(value)
    raise ValueError(f"the model's config has none of: {', '.join(names)}")
