"""Catalogue of models: weights, and the KV geometry from their configs.

name ─► row of kvsim.sizing.model_table ─► config ─► geometry_from_config ─► bytes per token
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from kvsim.sizing.geometry import KVGeometry, geometry_from_config
from kvsim.sizing.model_table import ROWS
from kvsim.spelling import nearest

ELEMENT_BYTES = {"float8": 1, "float16": 2, "bfloat16": 2, "float32": 4}

# Well-known models with an unsupported cache, and the reason.
REFUSED = {
    "gemma-3n": "shared_layers",
    "llama-4-scout": "chunked",
    "llama-4-maverick": "chunked",
    "deepseek-v3.2": "indexer",
    "jamba": "recurrent",
    "mamba": "recurrent",
    "rwkv": "recurrent",
    "qwen3-next": "layer_types",
    "t5": "encoder_decoder",
    "bart": "encoder_decoder",
}


class UnknownModelError(KeyError):
    """No such model in the catalogue.

    Attributes:
        name: the name requested.
        close: similar names.
        reason: why a known model is unsupported; None for an unknown one.
    """

    def __init__(self, name: str, close: tuple[str, ...], reason: str | None = None) -> None:
        super().__init__(name)
        self.name, self.close, self.reason = name, close, reason


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What KV cache size and speed depend on.

    Attributes:
        name: catalogue name; ``custom`` for a model read from a config.
        source: repository of the config.
        dtype: of the published weights.
        parameters: number of weights, tied ones counted once.
        active_parameters: weights used per token.
        config: fields of the Transformers config.
    """

    name: str
    source: str
    dtype: str
    parameters: int
    active_parameters: int
    config: Mapping[str, Any]

    @property
    def serving_dtype(self) -> str:
        """The dtype of vLLM's ``--dtype auto``: 32-bit weights are served in 16 bits."""
        return "float16" if self.dtype == "float32" else self.dtype

    @property
    def kv_dtype(self) -> str:
        """Default dtype of K and V (bfloat16 for 8-bit weights)."""
        return "bfloat16" if self.dtype == "float8" else self.serving_dtype

    @property
    def max_positions(self) -> int | None:
        """Position limit of the model; None if its config has none."""
        for key in ("max_position_embeddings", "n_positions", "max_seq_len"):
            if self.config.get(key):
                return int(self.config[key])
        return None

    def max_length_of(self, longest: int) -> int:
        """Return the maximum length for a longest request of ``longest`` tokens."""
        return min(longest, self.max_positions or longest)

    @property
    def query_heads(self) -> int:
        """Query heads of a layer."""
        heads = self.config.get("num_attention_heads") or self.config["n_head"]
        return int(heads)

    def weight_bytes(self, dtype: str | None = None) -> int:
        """Return the bytes of all weights in ``dtype``, by default the serving dtype."""
        return self.parameters * ELEMENT_BYTES[dtype or self.serving_dtype]

    def geometry(self, kv_dtype: str | None = None) -> KVGeometry:
        """Return the shape of its KV cache.

        Raises:
            kvsim.sizing.geometry.UnsupportedGeometryError: another kind of cache.
        """
        return geometry_from_config(self.config, ELEMENT_BYTES[kv_dtype or self.kv_dtype])


def _catalogue() -> dict[str, ModelFacts]:
    return {
        name: ModelFacts(name, source, dtype, count, active or count, MappingProxyType(config))
        for name, source, dtype, count, active, config in ROWS
    }


MODELS: Mapping[str, ModelFacts] = MappingProxyType(_catalogue())


def find_model(name: str) -> ModelFacts:
    """Find a model by catalogue or repository name; ignores case.

    Raises:
        UnknownModelError: with similar names, or the reason why it is unsupported.
    """
    wanted = name.lower()
    for facts in MODELS.values():
        if wanted in (facts.name, facts.source.lower(), facts.source.lower().rpartition("/")[2]):
            return facts
    short = wanted.rpartition("/")[2]
    for refused, reason in REFUSED.items():
        if short == refused or short.startswith(f"{refused}-"):
            raise UnknownModelError(name, (), reason)
    raise UnknownModelError(name, nearest(short, MODELS, 3))
