"""Sliding-window layers of a model, from its config.

    position      0 1 2 3 4 5 6 7
    full layer    k k k k k k k k        every token is kept
    sliding, 3    . . . . . k k k        only the newest 3 are attended to

Recent Transformers configs list ``layer_types``. For older ones, the model type decides by the rule
of its configuration class.
"""

from __future__ import annotations

from kvsim.sizing.fields import Config, UnsupportedGeometryError

_ALL_SLIDE = ("mistral", "mixtral", "moshi", "phi3", "phimoe", "starcoder2")
_UPPER_SLIDE = ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe")
_PATTERNS = {
    "cohere2": 4, "gemma2": 2, "gemma3": 6, "gemma3_text": 6, "gemma3n_text": 5, "gemma4_text": 6,
    "gemma4_unified_text": 6, "gpt_oss": 2, "olmo3": 4,
}  # fmt: skip


def windowed(config: Config, layers: int) -> list[bool]:
    """Return which layers have a window.

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
