"""A tiny random model of every type that Transformers registers for causal language models."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

FAMILIES = sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
VOCABULARY = 97
_LAYERS = (
    "num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers",
)  # fmt: skip
_WIDTHS = (
    "hidden_size", "n_embd", "d_model", "word_embed_proj_dim", "embedding_size", "emb_dim",
    "dim_model", "dim", "attention_hidden_size",
)  # fmt: skip
_INNER = (
    "intermediate_size", "ffn_dim", "n_inner", "d_ff", "ffn_hidden_size", "dff", "dim_ff",
    "decoder_ffn_dim", "encoder_ffn_dim",
)  # fmt: skip
_EXPERT = (
    "moe_intermediate_size", "shared_expert_intermediate_size", "shared_experts_intermediate_size",
)  # fmt: skip
_HEADS = (
    "num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads",
    "encoder_attention_heads", "attention_heads",
)  # fmt: skip
_HEAD_DIMS = ("head_dim", "dim_head", "kv_channels", "attention_head_dim")
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "seq_length")
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_ONE = ("n_shared_experts", "n_group", "topk_group", "first_k_dense_replace", "num_dense_layers")
_SIZES: dict[str, int] = {
    "vocab_size": VOCABULARY, "rotary_dim": 8, "max_window_layers": 2, "num_experts_per_tok": 2,
    "num_key_value_heads": 2, "kv_n_heads": 2,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
    "cls_token_id": 4, "sep_token_id": 5,
    **dict.fromkeys(_WIDTHS, 64), **dict.fromkeys(_INNER, 96), **dict.fromkeys(_EXPERT, 32),
    **dict.fromkeys(_HEADS, 4), **dict.fromkeys(_HEAD_DIMS, 16), **dict.fromkeys(_POSITIONS, 256),
    **dict.fromkeys(_EXPERTS, 4), **dict.fromkeys(_ONE, 1),
}  # fmt: skip
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
# What the defaults of a configuration class leave out, or what its own checks want.
_OWN: dict[str, dict[str, Any]] = {
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {"sliding_attention": _ROPE, "full_attention": _ROPE},
    },
    "dots3_note_text": {"num_key_value_heads": 4, "head_dim": 192, "per_layer_config": {}},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0}},
    "gemma4_assistant": {
        "text_config": {
            "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": 0,
            "num_hidden_layers": 4,
            "num_kv_shared_layers": 4,
        }
    },
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 8, "head_dim": 16},
    "reformer": {"is_decoder": True, "axial_pos_embds": False},
    "zaya": {"num_experts_per_tok": 1},
}


@cache
def tiny_config(family: str) -> PretrainedConfig:
    """The defaults of a configuration class with two layers (or four) of 4 heads of 16.

    Raises:
        Exception: none that Transformers can build; whatever it raised for the first.
    """
    kind = CONFIG_MAPPING[family]
    defaults, errors = default_config(family).to_dict(), list[Exception]()
    for depth in (2, 4):
        for filled in (True, False):  # sizes that are None by default, too
            try:
                config = kind(**_shrunk(defaults, depth, filled) | _OWN.get(family, {}))
                with torch.device("meta"):
                    AutoModelForCausalLM.from_config(config)
            except Exception as error:  # whatever a family's own checks raise
                errors.append(error)
            else:
                return config
    raise errors[0]


def default_config(family: str) -> PretrainedConfig:
    """The defaults of a configuration class, with what its own checks want besides."""
    kind = CONFIG_MAPPING[family]
    try:
        return kind()
    except Exception:  # whatever a family's own checks raise
        return kind(**_OWN[family])


def _shrunk(values: dict[str, Any], depth: int, filled: bool) -> dict[str, Any]:
    deep = max([v for k, v in values.items() if k in _LAYERS and isinstance(v, int)], default=0)
    found: dict[str, Any] = {}
    for key, value in values.items():
        if key in _LAYERS and isinstance(value, int):
            found[key] = depth
        elif key in _SIZES and _is_size(value, filled and not key.endswith("_id")):
            found[key] = _SIZES[key]
        elif isinstance(value, list) and deep and len(value) == deep:
            kinds = list({str(each): each for each in value}.values())
            found[key] = [kinds[index % len(kinds)] for index in range(depth)]
        elif isinstance(value, dict) and key.endswith("_config") and "model_type" in value:
            named = {"model_type": value["model_type"]} if value["model_type"] else {}
            found[key] = named | _shrunk(value, depth, filled)
    return found


def _is_size(value: Any, filled: bool) -> bool:
    return (isinstance(value, int | list) and not isinstance(value, bool)) or (
        filled and value is None
    )


def architecture(family: str) -> str:
    """The class that Transformers builds."""
    named = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[family]
    return named if isinstance(named, str) else named[0]


def tiny_model(family: str) -> torch.nn.Module:
    """The model of :func:`tiny_config`, its matrices drawn wide enough that tokens differ."""
    torch.manual_seed(0)
    model: torch.nn.Module = AutoModelForCausalLM.from_config(
        tiny_config(family), dtype=torch.float32
    )
    draw = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        # Encoders of images and sounds do not shrink, and text never reaches them.
        if parameter.ndim >= 2 and parameter.numel() < 5_000_000:
            parameter.data.normal_(0, 0.25, generator=draw)
    return model
