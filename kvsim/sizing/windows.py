"""Sliding-window layers of a model, from its config.

    position      0 1 2 3 4 5 6 7
    full layer    k k k k k k k k        every token is kept
    sliding, 3    . . . . . k k k        only the newest 3 are attended to

Recent Transformers configs list ``layer_types``. For older ones, the model type decides by the rule
of its configuration class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FULL, SLIDING = "full_attention", "sliding_attention"
_ALL_SLIDE = ("mistral", "mixtral", "moshi", "phi3", "phimoe", "starcoder2")
_UPPER_SLIDE = ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe")
_PATTERNS = {"gemma2": 2, "gemma3_text": 6, "gemma3": 6, "cohere2": 4}


class UnsupportedGeometryError(ValueError):
    """The KV cache of the model is of an unsupported kind.

    Attributes:
        reason: a code: ``encoder_decoder``, ``layer_types``, ``recurrent``, ``window_unknown``,
            ``shared_layers``, ``head_sizes``, ``indexer``, ``chunked``, ``cross_attention``,
            ``unknown_key``, ``uneven``: heads that the ranks cannot share.
        detail: the config field or value.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"no KV geometry: {reason} ({detail})")
        self.reason = reason
        self.detail = detail


def sliding_layers(config: Mapping[str, Any], layers: int) -> tuple[int, int | None]:
    """Return the number of layers with a window, and the window in tokens.

    Raises:
        UnsupportedGeometryError: a layer that is neither full nor sliding attention, or a window
            without known layers.
    """
    types = config.get("layer_types") or _gpt_neo(config)
    window = config.get("window_size" if _gpt_neo(config) else "sliding_window")
    if types:
        others = sorted({str(kind) for kind in types} - {FULL, SLIDING})
        if others:
            raise UnsupportedGeometryError("layer_types", ", ".join(others))
        count = sum(kind == SLIDING for kind in types)
        if count and not window:
            raise UnsupportedGeometryError("window_unknown", "layer_types without sliding_window")
    else:
        count = _by_type(config, layers) if window else 0
    return (count, int(window)) if count and window else (0, None)


def _gpt_neo(config: Mapping[str, Any]) -> list[str] | None:
    """Its kinds of layers: ``attention_types`` is [[[kinds in turn], how often], ...]."""
    if config.get("model_type") != "gpt_neo":
        return None
    kinds = [kind for group, n in config.get("attention_types") or () for kind in [*group] * n]
    return [SLIDING if kind == "local" else FULL for kind in kinds]


def _by_type(config: Mapping[str, Any], layers: int) -> int:
    kind = config.get("model_type")
    if kind in _ALL_SLIDE:
        return layers
    if kind in _UPPER_SLIDE:
        if not config.get("use_sliding_window"):
            return 0
        return layers - min(layers, int(config.get("max_window_layers", 28)))
    if kind in _PATTERNS:
        period = int(config.get("sliding_window_pattern") or _PATTERNS[kind])
        return layers - layers // period
    raise UnsupportedGeometryError("window_unknown", f"sliding_window of {kind}")
