"""What each layer of a model keeps, from its config: the input of :mod:`kvsim.sizing.layout`.

    config ─► kinds   full  window  window ...  full      one or more for each layer
           ─► caches  bytes of a token or of a state, on one tensor-parallel rank

Names of fields and defaults are those of the Transformers configs, the shapes of states those of
vLLM 0.32 (``model_executor/layers/mamba/mamba_utils.py``): a convolution's last inputs and a
recurrent state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kvsim.core.blocks import blocks_needed
from kvsim.sizing.fields import (
    HEAD_SIZES,
    MAX_LAYERS,
    Config,
    MissingFieldError,
    UnsupportedGeometryError,
    attention_heads,
    check_fields,
    first_named,
    first_of,
    head_dim_of,
    hidden_size,
    kv_heads_of,
    layer_count,
    text_config,
    whole,
)
from kvsim.sizing.layout import LayerCache, LayerKind

# A layer keeps nothing, one cache, or several.
Kinds = tuple[str, ...]

_NAMES: Mapping[str, Kinds] = {
    "full_attention": ("full",), "attention": ("full",), "full": ("full",),
    "sliding_attention": ("window",), "chunked_attention": ("chunked",),
    "linear_attention": ("state",), "mamba": ("state",), "conv": ("state",),
    "hybrid": ("state", "full"), "mlp": (), "moe": (),
}  # fmt: skip
# Multiples of block sizes: FlashAttention, FlashMLA, and latent layers combined with states.
_KERNEL_BLOCK, _LATENT_BLOCK, _LATENT_HYBRID_BLOCK = 16, 64, 128
_SCALED = 128  # elements that share a scale
_MAMBA2_HEADS = ("mamba_n_heads", "mamba_num_heads", "n_mamba_heads")
_FLOAT32 = 4
# Types whose latent vectors vLLM keeps (``is_deepseek_mla``); of one it keeps keys and values.
_LATENT_TYPES = (
    "axk1", "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa", "kimi_k2",
    "kimi_linear", "pangu_ultra_moe",
)  # fmt: skip
EXPANDED_LATENT = "minicpm3"
# vLLM's Falcon with rotary positions does not hand the cache's dtype to its attention.
_KV_DTYPE_IGNORED = "falcon"
# Fields of states; which layers keep one is known of some model types alone.
_STATE_FIELDS = ("linear_num_value_heads", "ssm_state_size", "mamba_d_state", *_MAMBA2_HEADS)


# Which layers have a window, by model type, where no ``layer_types`` say it: all; those from
# ``max_window_layers`` on; all but every n-th.
_ALL_SLIDE = ("mistral", "mixtral", "moshi", "phi3", "phimoe", "starcoder2")
_UPPER_SLIDE = ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe")
_PATTERNS = {
    "cohere2": 4, "gemma2": 2, "gemma3": 6, "gemma3_text": 6, "gemma3n_text": 5, "gemma4_text": 6,
    "gemma4_unified_text": 6, "gpt_oss": 2, "olmo3": 4,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Serving:
    """How a model is served.

    Attributes:
        dtype_bytes: of an element of the weights, and so of a state; ``kv_bytes``: of K and V.
        tensor_parallel: ranks that share each layer.
        prefix_caching: states are kept at block boundaries.
    """

    block_size: int = 16
    dtype_bytes: int = 2
    kv_bytes: int = 2
    tensor_parallel: int = 1
    prefix_caching: bool = True


def layer_caches(config: Config, serving: Serving) -> list[LayerCache]:
    """Return what the layers keep on one rank, blocks as large as vLLM makes them.

    Raises:
        UnsupportedGeometryError: a kind of layer that is not known here, with the field.
        MissingFieldError, KeyError: a field that a size or the kinds depend on is missing.
    """
    config = text_config(config)
    check_fields(config)
    kinds = layer_kinds(config)
    _share(attention_heads(config), serving.tensor_parallel, "attention heads")
    sizes = {
        kind: _cache(config, kind, serving) for kind in sorted({k for ks in kinds for k in ks})
    }
    caches = [sizes[kind] for ks in kinds for kind in ks]
    if "state" in sizes:
        return _aligned(caches, serving)
    return caches


def stage_layers(layers: int, stages: int) -> list[int]:
    """Return how many of a model's layers each pipeline stage has."""
    each, left = divmod(layers, stages)
    return [each + (stages - 1 - left <= stage < stages - 1) for stage in range(stages)]


def pipeline_stages(config: Config, stages: int) -> list[list[int]]:
    """Return the places in :func:`layer_caches` of each pipeline stage's layers.

    vLLM gives every stage as many layers, and what is left over to the stages before the last
    (``vllm/distributed/utils.py``, ``get_pp_indices``).
    """
    kinds = layer_kinds(text_config(config))
    found, place, layer = list[list[int]](), 0, 0
    for count in stage_layers(len(kinds), stages):
        caches = sum(map(len, kinds[layer : layer + count]))
        found.append([*range(place, place + caches)])
        place, layer = place + caches, layer + count
    return found


def largest_stage(
    caches: Sequence[LayerCache], stages: Sequence[Sequence[int]]
) -> list[LayerCache]:
    """Return the layers of the stage that keeps most; without stages all."""
    each = [[caches[place] for place in stage] for stage in stages] or [list(caches)]
    return max(each, key=lambda kept: sum(cache.page_bytes for cache in kept))


# -- kinds ----------------------------------------------------------------------------------------


def layer_kinds(config: Config) -> list[Kinds]:
    """Return what each layer keeps, by kind; nothing for layers that use another layer's cache.

    Raises:
        UnsupportedGeometryError: a layer of an unknown kind.
    """
    count = layer_count(config)
    kinds = _listed(config, count) or _by_model_type(config, count)
    if not kinds and any(config.get(name) for name in _STATE_FIELDS):
        raise UnsupportedGeometryError("layer_types", f"states of {config.get('model_type')}")
    kinds = kinds or _windows(config, count)
    if str(config.get("model_type")).startswith("gemma4"):
        kinds[-1] = ("full",)
    kinds = [_latent(config, each) for each in kinds]
    shared = config.get("num_kv_shared_layers") or 0
    if not isinstance(shared, int) or not 0 <= shared < count:
        raise MissingFieldError("num_kv_shared_layers")
    return [*kinds[: count - shared], *[()] * shared]


def _listed(config: Config, count: int) -> list[Kinds]:
    names = config.get("layer_types") or config.get("layers_block_type")
    if not names:
        return []
    if not isinstance(names, list | tuple) or len(names) < count:
        raise MissingFieldError("layer_types")
    unknown = sorted({str(name) for name in names} - _NAMES.keys())
    if unknown:
        raise UnsupportedGeometryError("layer_types", ", ".join(unknown))
    return [_NAMES[name] for name in names[:count]]


def _by_model_type(config: Config, count: int) -> list[Kinds]:
    kind = config.get("model_type")
    if kind in ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"):
        every = int(config.get("full_attention_interval") or 4)
        return [("full",) if (i + 1) % every == 0 else ("state",) for i in range(count)]
    if kind == "kimi_linear":
        full = {int(i) for i in config["linear_attn_config"]["full_attn_layers"]}
        return [("full",) if i + 1 in full else ("state",) for i in range(count)]
    if kind in ("minimax", "MiniMaxText01", "MiniMaxM1", "minimax_text_01", "minimax_m1"):
        types = config.get("attn_type_list") or ()
        return [("full",) if each else ("state",) for each in types]
    if kind == "nemotron_h":
        letters: Mapping[str, Kinds] = {"M": ("state",), "*": ("full",)}
        return [letters.get(each, ()) for each in config["hybrid_override_pattern"]]
    if kind == "jamba":
        period, offset = first_of(config, "attn_layer_period"), int(config["attn_layer_offset"])
        return [("full",) if i % period == offset else ("state",) for i in range(count)]
    if kind == "bamba":
        full = {int(i) for i in config.get("attn_layer_indices") or ()}
        return [("full",) if i in full else ("state",) for i in range(count)]
    if kind == "falcon_h1":
        return [("state", "full")] * count
    if kind in ("lfm2", "lfm2_moe"):
        full = {int(i) for i in config.get("full_attn_idxs") or ()}
        return [("full",) if i in full else ("state",) for i in range(count)]
    if kind == "llama4_text":
        return _llama4(config, count)
    if kind == "gpt_neo":  # [[[kinds in turn], how often], ...]
        groups = config.get("attention_types") or ()
        names = [name for group, n in groups for name in [*group] * min(n, MAX_LAYERS)]
        return [("window",) if name == "local" else ("full",) for name in names]
    if config.get("hybrid_layer_pattern"):  # MiMo
        return [("window",) if each else ("full",) for each in config["hybrid_layer_pattern"]]
    return []


def _llama4(config: Config, count: int) -> list[Kinds]:
    """Layers without rotary positions attend to everything, the others to a chunk."""
    rotary = config.get("no_rope_layers")  # 1: has rotary positions
    if not rotary:
        step = int(config.get("no_rope_layer_interval") or 4)
        rotary = [int((i + 1) % step != 0) for i in range(count)]
    chunk = config.get("attention_chunk_size")
    return [("chunked",) if each and chunk else ("full",) for each in rotary[:count]]


def _windows(config: Config, count: int) -> list[Kinds]:
    if config.get("attention_chunk_size"):
        raise UnsupportedGeometryError("chunked", "attention_chunk_size")
    return [("window",) if each else ("full",) for each in _windowed(config, count)]


def _windowed(config: Config, layers: int) -> list[bool]:
    """Return which layers attend to the newest tokens only.

    Raises:
        UnsupportedGeometryError: a window without known layers.
    """
    window = config.get("sliding_window")
    if not window or config.get("use_sliding_window") is False:
        return [False] * layers
    kind = str(config.get("model_type"))
    if kind in _ALL_SLIDE:
        return [True] * layers
    if kind in _UPPER_SLIDE:
        first = min(layers, int(config.get("max_window_layers", 28)))
        return [bool(config.get("use_sliding_window")) and i >= first for i in range(layers)]
    if kind in _PATTERNS:
        period = int(config.get("sliding_window_pattern") or _PATTERNS[kind])
        return [(i + 1) % period != 0 for i in range(layers)]
    if window >= (config.get("max_position_embeddings") or window + 1):
        return [True] * layers  # whichever have it, it leaves nothing out
    raise UnsupportedGeometryError("window_unknown", f"sliding_window of {kind}")


def _latent(config: Config, kinds: Kinds) -> Kinds:
    """Replace full attention with a latent vector, and an indexer, where the config has them."""
    kind = config.get("model_type")
    if not config.get("kv_lora_rank") or kind == EXPANDED_LATENT:
        return kinds
    if kind not in _LATENT_TYPES:
        raise UnsupportedGeometryError("unknown_key", f"kv_lora_rank of {kind}")
    indexer = ("indexer",) if config.get("index_head_dim") else ()
    return tuple(
        each for kind in kinds for each in (("latent", *indexer) if kind == "full" else (kind,))
    )


# -- bytes ----------------------------------------------------------------------------------------


def _cache(config: Config, kind: str, serving: Serving) -> LayerCache:
    size = serving.block_size
    if kind == "state":
        shape = _state_shape(config, serving)
        state = sum(elements * width for elements, width in shape)
        states = 1
        if serving.prefix_caching:  # one as the last step left it, and Mamba 2's in the prompt
            states = 3 if _is_mamba2(config) else 2
        return LayerCache("state", state, size, shape=tuple(n for n, _ in shape), states=states)
    if kind == "latent":
        rank, rotary = first_of(config, "kv_lora_rank"), first_of(config, "qk_rope_head_dim")
        token = (rank + rotary) * serving.kv_bytes
        if serving.kv_bytes == 1 and config.get("index_head_dim"):
            # vLLM's fp8_ds_mla: a float32 scale for every 128 elements, rotary parts in 16 bits
            token = rank + blocks_needed(rank, _SCALED) * _FLOAT32 + 2 * rotary
        return LayerCache("latent", token, size, shape=(1, rank + rotary))
    if kind == "indexer":  # 8-bit keys, and a float32 scale for every 128 elements
        head = first_of(config, "index_head_dim")
        scales = blocks_needed(head, _SCALED) * _FLOAT32
        return LayerCache("latent", head + scales, size, shape=(0, head + scales))
    heads, head, value = _head_shape(config, kind)
    ranks, local = serving.tensor_parallel, 1
    if heads > ranks:
        local = _share(heads, ranks, "KV heads")
    elif ranks % heads:  # otherwise each head has a copy on several ranks
        raise UnsupportedGeometryError("uneven", f"{heads} KV heads ÷ {ranks}")
    name: LayerKind = "full" if kind == "full" else "window" if kind == "window" else "chunked"
    span = 0
    if kind == "window":
        span = _window(config)
    elif kind == "chunked":
        span = first_of(config, "attention_chunk_size")
    width = serving.kv_bytes
    if config.get("model_type") == _KV_DTYPE_IGNORED and not config.get("alibi"):
        width = serving.dtype_bytes
    token = local * (head + value) * width
    return LayerCache(name, token, size, span, (local, head, value))


def _window(config: Config) -> int:
    window = config.get("window_size" if config.get("attention_types") else "sliding_window")
    if not window:
        raise UnsupportedGeometryError("window_unknown", "layers with a window of no size")
    return whole(window, "sliding_window")


def _head_shape(config: Config, kind: str) -> tuple[int, int, int]:
    """KV heads, and sizes of a key and a value; layers of a kind may have their own."""
    heads = attention_heads(config)
    if config.get("model_type") == EXPANDED_LATENT:  # keys and values padded alike
        head = first_of(config, "qk_nope_head_dim") + first_of(config, "qk_rope_head_dim")
        return heads, head, head
    kv_heads, head = kv_heads_of(config, heads), head_dim_of(config, heads)
    if heads % kv_heads:
        raise MissingFieldError("num_key_value_heads")
    if not first_named(config, *HEAD_SIZES) and hidden_size(config) % heads:
        raise MissingFieldError("head_dim")
    value = config.get("v_head_dim")
    if kind == "full":
        kv_heads = int(config.get("num_global_key_value_heads") or kv_heads)
        head = int(config.get("global_head_dim") or head)
    elif config.get("swa_num_key_value_heads"):
        kv_heads = first_of(config, "swa_num_key_value_heads")
        head = first_of(config, "swa_head_dim")
        value = config.get("swa_v_head_dim")
    return kv_heads, head, int(value or head)


def _state_shape(config: Config, serving: Serving) -> Sequence[tuple[int, int]]:
    """Elements of each part of a state on one rank, and bytes of an element."""
    kind, ranks, width = config.get("model_type"), serving.tensor_parallel, serving.dtype_bytes
    if config.get("linear_num_value_heads"):  # gated delta net
        keys = _share(first_of(config, "linear_num_key_heads"), ranks, "key heads")
        values = _share(first_of(config, "linear_num_value_heads"), ranks, "value heads")
        key = first_of(config, "linear_key_head_dim")
        value = first_of(config, "linear_value_head_dim")
        conv = (2 * keys * key + values * value) * (first_of(config, "linear_conv_kernel_dim") - 1)
        named = config.get("mamba_ssm_dtype")
        return (conv, width), (values * value * key, _width_of(named, width))
    if kind == "kimi_linear":  # Kimi delta attention; its state is kept in float32
        linear = config["linear_attn_config"]
        heads, head = _share(int(linear["num_heads"]), ranks, "heads"), int(linear["head_dim"])
        conv = 3 * heads * head * (int(linear.get("short_conv_kernel_size", 4)) - 1)
        return (conv, width), (heads * head * head, _FLOAT32)
    if kind in ("lfm2", "lfm2_moe"):
        dim = _share(int(config.get("conv_dim") or config["hidden_size"]), ranks, "channels")
        return ((dim * (first_of(config, "conv_L_cache") - 1), width),)
    if kind == "jamba":
        inner = first_of(config, "mamba_expand") * first_of(config, "hidden_size")
        inner = _share(inner, ranks, "channels")
        state = inner * first_of(config, "mamba_d_state")
        return (inner * (first_of(config, "mamba_d_conv") - 1), width), (state, width)
    if config.get("attn_type_list"):  # lightning attention
        heads, head = first_of(config, "num_attention_heads"), first_of(config, "head_dim")
        return ((_share(heads, ranks, "attention heads") * head * head, width),)
    return _mamba2(config, ranks, width)


def _share(total: int, ranks: int, what: str) -> int:
    """Return each rank's part.

    Raises:
        UnsupportedGeometryError: ``uneven``.
    """
    if total % ranks:
        raise UnsupportedGeometryError("uneven", f"{total} {what} ÷ {ranks}")
    return total // ranks


def _is_mamba2(config: Config) -> bool:
    return any(config.get(name) for name in _MAMBA2_HEADS)


def _mamba2(config: Config, ranks: int, width: int) -> Sequence[tuple[int, int]]:
    heads = first_of(config, *_MAMBA2_HEADS)
    local = _share(heads, ranks, "heads of states")
    head = first_of(config, "mamba_d_head", "mamba_head_dim", "mamba_headdim")
    state = first_of(config, "mamba_d_state", "ssm_state_size")
    kernel = first_of(config, "mamba_d_conv", "conv_kernel")
    groups = first_of(config, "mamba_n_groups", "n_groups", "mamba_ngroups")
    inner = int(config.get("mamba_d_ssm") or heads * head)
    if groups % ranks:
        groups = ranks  # as many copies as ranks need
    conv = (_share(inner, ranks, "channels") + 2 * groups // ranks * state) * (kernel - 1)
    default = "float32" if config.get("model_type") == "nemotron_h" else None
    named = config.get("mamba_ssm_cache_dtype", default)
    return (conv, width), (local * head * state, _width_of(named, width))


def _width_of(dtype: object, default: int) -> int:
    return {"float32": 4, "float16": 2, "bfloat16": 2}.get(str(dtype), default)


# -- states combined with attention ---------------------------------------------------------------


def _aligned(caches: list[LayerCache], serving: Serving) -> list[LayerCache]:
    """Raise the attention's blocks until one holds a state, and pad the state's page to it."""
    state = max(cache.page_bytes for cache in caches if cache.kind == "state")
    attention = [cache for cache in caches if cache.kind != "state"]
    if not attention:
        return caches
    token = attention[0].token_bytes
    latent = attention[0].kind == "latent"
    kernel = _LATENT_BLOCK if latent else _KERNEL_BLOCK
    least = max(kernel, serving.block_size, _LATENT_HYBRID_BLOCK if latent else 0)
    size = kernel * blocks_needed(least * blocks_needed(state, least * token), kernel)
    page = size * token
    return [
        replace(cache, block_size=size, page_padded=page if page != cache.page_bytes else None)
        if cache.kind == "state"
        else replace(cache, block_size=size)
        for cache in caches
    ]
