"""Fields of a Transformers config that the KV cache depends on, under all published names.

Published configs use many names for the same size, and omit defaults of their configuration class.
An unknown field with a name related to the cache is an error, not ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

Config = Mapping[str, Any]
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads")
_NESTED = ("text_config", "language_config", "llm_config", "thinker_config")
MAX_LAYERS = 1024
HIDDEN_SIZE = ("hidden_size", "n_embd", "d_model")  # names of the field
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
# Defaults of classes whose published configs leave sizes out.
_DEFAULTS: Mapping[str, Config] = {
    "gemma3_text": {
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "max_position_embeddings": 131_072,
    },
}  # fmt: skip
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
    attention_head_dim linear_key_head_dim linear_num_key_heads linear_num_value_heads
    linear_value_head_dim mamba_chunk_size mamba_d_head mamba_head_dim mamba_headdim mamba_n_heads
    mamba_num_heads n_mamba_heads swa_head_dim swa_num_attention_heads swa_num_key_value_heads
    swa_v_head_dim chunk_size sliding_window_size
    """,
    )
)
_ENCODERS = re.compile(r"bert|electra|mpnet")
_REFUSED = {"is_encoder_decoder": "encoder_decoder", "cross_attention_layers": "cross_attention"}
# Sizes of a layer's cache, which a config may override for single layers.
_CACHE_SIZES = ("head_dim", "num_key_value_heads", "v_head_dim", "kv_lora_rank", "qk_rope_head_dim")


class UnsupportedGeometryError(ValueError):
    """The KV cache of the model is of an unsupported kind.

    Attributes:
        reason: a code: ``encoder``, ``encoder_decoder``, ``layer_types``, ``recurrent``,
            ``window_unknown``, ``shared_layers``, ``head_sizes``, ``indexer``, ``chunked``,
            ``cross_attention``, ``unknown_key``, ``uneven``: heads that the ranks cannot share.
        detail: the config field or value.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"no KV geometry: {reason} ({detail})")
        self.reason = reason
        self.detail = detail


class MissingFieldError(ValueError):
    """A config has no usable value under any of ``names``."""

    def __init__(self, *names: str) -> None:
        super().__init__(f"the model's config has none of: {', '.join(names)}")
        self.names = names


HEAD_SIZES = ("head_dim", "attention_head_dim", "kv_channels")


def text_config(config: Config) -> Config:
    """Return the config of the language model, which multimodal ones nest, with its defaults."""
    found = {**config}
    while first_named(found, *_LAYERS) is None:
        inner = first_named(found, *_NESTED)
        if not isinstance(inner, Mapping):
            break
        outer = {"model_type": f"{found['model_type']}_text"} if "model_type" in found else {}
        found = {**outer, **inner}
    defaults = _DEFAULTS.get(str(found.get("model_type")), {})
    missing = {name: value for name, value in defaults.items() if found.get(name) is None}
    return {**found, **missing}


def check_fields(config: Config) -> None:
    """Refuse caches that no field here describes.

    Raises:
        UnsupportedGeometryError: ``encoder``, ``encoder_decoder``, ``cross_attention``,
            ``head_sizes``, ``unknown_key``, each with the field.
    """
    if _ENCODERS.search(str(config.get("model_type"))) and not config.get("is_decoder"):
        raise UnsupportedGeometryError("encoder", "model_type")
    for name, reason in _REFUSED.items():
        if config.get(name):
            raise UnsupportedGeometryError(reason, name)
    for layer, values in (config.get("per_layer_config") or {}).items():
        for name in _CACHE_SIZES:
            if name in values and values[name] != config.get(name):
                raise UnsupportedGeometryError("head_sizes", f"per_layer_config.{layer}.{name}")
    for name, value in config.items():
        is_size = isinstance(value, int | list | dict) and not isinstance(value, bool) and value
        if is_size and _MATTERS.search(name) and name not in _KNOWN:
            raise UnsupportedGeometryError("unknown_key", name)


def layer_count(config: Config) -> int:
    """Return the number of layers.

    Raises:
        MissingFieldError: none, or more than any model has.
    """
    count = first_of(config, *_LAYERS)
    if not 0 < count <= MAX_LAYERS:
        raise MissingFieldError(_LAYERS[0])
    return count


def hidden_size(config: Config) -> int:
    """Return the elements that a token has between layers.

    Raises:
        MissingFieldError: the config does not say.
    """
    return first_of(config, *HIDDEN_SIZE)


def attention_heads(config: Config) -> int:
    """Return the number of query heads."""
    return first_of(config, *_HEADS)


def kv_heads_of(config: Config, heads: int) -> int:
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
    if isinstance(given, list):
        raise UnsupportedGeometryError("head_sizes", f"num_key_value_heads: {given!r}")
    return whole(given, "num_key_value_heads")


def head_dim_of(config: Config, heads: int) -> int:
    """Return the size of a key; without a field, the hidden size over ``heads``."""
    if first_named(config, *HEAD_SIZES):
        return first_of(config, *HEAD_SIZES)
    return hidden_size(config) // heads


def first_named(config: Config, *names: str) -> Any:
    """Return the first field that has a value; None without one."""
    return next((config[name] for name in names if config.get(name)), None)


def first_of(config: Config, *names: str) -> int:
    """Return the first of these fields that has a value.

    Raises:
        MissingFieldError: none has, or no whole number above 0.
    """
    for name in names:
        value = config.get(name)
        if value:
            return whole(value, name)
    raise MissingFieldError(*names)


def whole(value: Any, name: str) -> int:
    """Return a size.

    Raises:
        MissingFieldError: it is no whole number above 0.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise MissingFieldError(name)
    return value
