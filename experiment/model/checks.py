"""Refuse unsupported models from their config alone.

Both caches keep the keys and values of every token in every layer. A model with another attention
would be measured wrongly without an error, so it is refused before any weight is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiment.files.bounded_reading import parse_json, read_bounded
from experiment.model.load import silence_libraries
from experiment.text.errors import UserError, one_line, shown, user_error
from experiment.text.messages import message
from kvsim.sizing.geometry import (
    KVGeometry,
    UnsupportedGeometryError,
    geometry_from_config,
)

MAX_CONFIG_BYTES = 1 << 20
_LANGUAGE_HEADS = ("GPT2LMHeadModel", "OpenAIGPTLMHeadModel", "CTRLLMHeadModel")
_FULL, _SLIDING = "full_attention", "sliding_attention"
# Configs have no common name for recurrent states; these words occur in their keys.
_RECURRENT_WORDS = ("mamba", "ssm_", "state_size", "linear_conv", "linear_key_head", "conv1d_width")
_RECURRENT_TYPES = ("rwkv", "xlstm", "recurrent_gemma")
# A decoder alone still has the fields of the encoder that it was trained beside.
_OF_ENCODERS = ("encoder_layers", "num_encoder_layers", "encoder_config")
# They repeat heads before attention, and cannot be probed without weights.
REPEATED_HEADS = ("jetmoe",)
_NO_CACHE = ("openai-gpt", "reformer", "xlnet")
# They add positions to scores by the length of the cache, which of a static one is its capacity.
_ADDED_POSITIONS = ("cpmant", "mpt")
# Transformers before it gives BLOOM a mask from which it cannot tell positions, for a static cache.
_BLOOM_SINCE = (5, 21)
_LATENT_TYPES = ("indexed", "compressed")
_CHUNKED = "chunked_attention"
# Why the table of families has no cache of another kind, by the reason of kvsim.
_REASONS = {
    "encoder": "encoder",
    "encoder_decoder": "encoder",
    "cross_attention": "encoder",
    "recurrent": "state",
    "layer_types": "state",
    "indexer": "latent",
}
# How the names of layer counts end.
_COUNTS = ("_layers", "_layer", "depth")
_MOST_LAYERS = 512
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")


def read_model_config(directory: Path, name: str) -> Any:
    """Read the Transformers config of ``directory``, with defaults.

    Raises:
        UserError: unreadable, requires remote code, or a type that Transformers does not know.
    """
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    silence_libraries()
    raw = read_object(directory / "config.json", name)
    family = raw.get("model_type")
    if not isinstance(family, str):
        raise user_error("error.model.lacks", model=name, fields="model_type")
    if raw.get("auto_map"):
        raise user_error("error.model.remote_code", model=name, family=family)
    _check_implementations(raw, name)
    _check_layer_count(raw, name)
    try:
        return AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except MemoryError:
        raise
    except Exception as error:  # validators of a config may raise anything
        key = "error.model.unbuildable" if family in CONFIG_MAPPING else "error.model.unknown_type"
        detail = one_line(error)
        raise user_error(key, model=name, family=family, detail=detail) from error


def check_model(config: Any, name: str, max_length: int) -> None:
    """Refuse a model that the two caches cannot hold.

    Args:
        config: a Transformers config.
        name: the model as named by the user.
        max_length: slots of the longest sequence.

    Raises:
        UserError: the first reason found.
    """
    try:
        _check_model(config, name, max_length)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # A field has an unexpected type.
        raise user_error("error.model.unbuildable", model=name, detail=one_line(error)) from error


def _check_model(config: Any, name: str, max_length: int) -> None:
    _check_decoder(config, name)
    _check_weights(config.to_dict(), name)
    config = config.get_text_config()
    values = config.to_dict()
    _check_layers(config, values, name)
    _check_window(config, values, name, max_length)
    _check_rope(values, name, max_length)
    if values.get("kv_lora_rank"):
        raise _refused(name, "latent", config)
    if config.model_type in _ADDED_POSITIONS or _is_old_bloom(config.model_type):
        raise _refused(name, "positions", config)
    _check_sizes(config, name)
    positions = max_positions(values)
    if positions is not None and max_length > positions:
        raise user_error(
            "error.model.too_long", model=name, max_length=max_length, positions=positions
        )


def _is_old_bloom(model_type: str) -> bool:
    import transformers

    version = tuple(map(int, transformers.__version__.split(".")[:2]))
    return model_type == "bloom" and version < _BLOOM_SINCE


def model_geometry(config: Any, element_bytes: int) -> KVGeometry:
    """Shape of the cache that Transformers keeps for a model, by its config or text config.

    Raises:
        kvsim.sizing.geometry.UnsupportedGeometryError: a cache of another kind.
        ValueError: a size is missing.
    """
    text = config.get_text_config()
    values = text.to_dict()
    if values.pop("attention_chunk_size", None):  # within one chunk every token attends to all
        values["layer_types"] = None
    shape = geometry_from_config(values, element_bytes)
    if getattr(text, "new_decoder_architecture", False):  # Falcon's heads, kept repeated
        shape = replace(shape, kv_heads=text.num_attention_heads)
    return shape


def max_positions(config: Mapping[str, Any]) -> int | None:
    """Maximum number of positions of the model; None if unlimited."""
    for key in _POSITIONS:
        value = config.get(key)
        if isinstance(value, int) and value > 0:
            return value
    return None


def read_object(path: Path, name: str) -> dict[str, Any]:
    """Read one of the small JSON files of a model.

    Raises:
        UserError: truncated, too large, or not a JSON object.
    """
    try:
        data = parse_json(read_bounded(path, MAX_CONFIG_BYTES))
    except (UserError, ValueError) as error:
        raise user_error("error.model.bad_config", model=name, path=str(path)) from error
    if not isinstance(data, dict):
        raise user_error("error.model.bad_config", model=name, path=str(path))
    return data


def _check_implementations(raw: Mapping[str, Any], name: str) -> None:
    """Refuse a config that names an implementation or a file of weights.

    Transformers may load the one from a hub, and reads the other instead of the weights that are
    checked here.
    """
    for table in _tables(raw):
        for key, inner in table.items():
            named = key.endswith("_implementation") or key == "transformers_weights"
            if named and inner is not None:
                raise user_error("error.model.implementation", model=name, config_key=key)


def _check_layer_count(raw: Mapping[str, Any], name: str) -> None:
    """Refuse excessive layer counts before Transformers allocates lists of them."""
    for table in _tables(raw):
        for key, count in table.items():
            if key.endswith(_COUNTS) and isinstance(count, int) and count > _MOST_LAYERS:
                raise user_error(
                    "error.model.unbuildable", model=name, detail=f"{key} = {shown(count)}"
                )


def _tables(raw: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The config and every table in it."""
    left: list[Any] = [raw]
    while left:
        value = left.pop()
        if isinstance(value, Mapping):
            yield value
            left += value.values()
        elif isinstance(value, list):
            left += value


def _check_decoder(config: Any, name: str) -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if (
        config.is_encoder_decoder
        or config.model_type == "trocr"
        or any(getattr(config, field, None) is not None for field in _OF_ENCODERS)
    ):
        raise _refused(name, "encoder", config)
    if config.model_type in _NO_CACHE:
        raise _refused(name, "no_cache", config)
    known = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)
    named = config.architectures or ([known] if isinstance(known, str) else list(known or ()))
    # BERT-like encoders also have a causal head, which is meaningless without is_decoder.
    encoder = hasattr(config, "type_vocab_size") and not getattr(config, "is_decoder", True)
    if encoder:
        raise _refused(name, "encoder", config)
    if known is None or not any(_is_causal(each) for each in named):
        shown = ", ".join(named) or config.model_type
        raise user_error(
            "error.model.not_causal", model=name, family=config.model_type, architecture=shown
        )


def _is_causal(architecture: str) -> bool:
    ends = ("ForCausalLM", "ForConditionalGeneration")
    return architecture.endswith(ends) or architecture in _LANGUAGE_HEADS


def _check_weights(values: Mapping[str, Any], name: str) -> None:
    quantization = values.get("quantization_config")
    if quantization:
        method = quantization.get("quant_method") if isinstance(quantization, Mapping) else None
        raise user_error("error.model.quantized", model=name, method=str(method or "?"))


def _check_layers(config: Any, values: Mapping[str, Any], name: str) -> None:
    types = {str(kind) for kind in getattr(config, "layer_types", None) or ()}
    recurrent = config.model_type in _RECURRENT_TYPES or any(
        word in key for key in values for word in _RECURRENT_WORDS
    )
    other = types - {_FULL, _SLIDING, _CHUNKED}
    latent = any(kind.startswith(_LATENT_TYPES) for kind in other)
    # A hybrid model may use only attention layers.
    if (recurrent and not types & {_FULL, _SLIDING}) or (other and not latent):
        raise _refused(name, "state", config)
    if latent:
        raise _refused(name, "latent", config)


def _check_window(config: Any, values: Mapping[str, Any], name: str, max_length: int) -> None:
    window = values.get("sliding_window")
    types = getattr(config, "layer_types", None)
    slides = _SLIDING in types if types else values.get("use_sliding_window") is not False
    if "local" in (getattr(config, "attention_layers", None) or ()):
        window, slides = values.get("window_size"), True
    if _CHUNKED in (types or ()):
        window, slides = values.get("attention_chunk_size"), True
    if slides and window and window < max_length:
        raise user_error(
            "error.model.sliding_window",
            model=name,
            family=config.model_type,
            window=window,
            max_length=max_length,
        )


def _check_rope(values: Mapping[str, Any], name: str, max_length: int) -> None:
    """Refuse lengths at which LongRoPE takes its factors from the longest request of a batch."""
    rope = values.get("rope_parameters") or {}
    if rope.get("rope_type") != "longrope":
        return
    positions = rope["original_max_position_embeddings"]
    if max_length > positions:
        raise user_error(
            "error.model.longrope", model=name, positions=positions, max_length=max_length
        )


def _check_sizes(config: Any, name: str) -> None:
    try:
        sizes = model_geometry(config, element_bytes=1)
    except UnsupportedGeometryError as error:
        if error.reason == "unknown_key":
            key = "error.model.unknown_key"
            raise user_error(key, model=name, config_key=error.detail) from error
        raise _refused(name, _REASONS.get(error.reason, "layout"), config) from error
    except (ValueError, TypeError, ZeroDivisionError) as error:
        detail = one_line(error)
        raise user_error("error.model.missing_size", model=name, detail=detail) from error
    if min(sizes.layers, sizes.kv_heads, sizes.head_dim) < 1:
        raise user_error("error.model.unbuildable", model=name, detail=str(sizes))
    if not isinstance(config.to_dict().get("vocab_size"), int):
        raise user_error("error.model.missing_size", model=name, detail="vocab_size")


def _refused(name: str, reason: str, config: Any) -> UserError:
    """A refusal for one of the reasons in ``families.reason``."""
    why = message(f"families.reason.{reason}").model_dump()
    return user_error("error.model.refused", model=name, family=config.model_type, why=why)
