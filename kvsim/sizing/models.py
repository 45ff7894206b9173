"""The catalogue of models: names, weights, and the KV geometry that follows from their configs.

name ─► row of kvsim.sizing.model_table ─► config ─► geometry_from_config ─► bytes per token
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from kvsim.near import nearest
from kvsim.sizing.geometry import KVGeometry, geometry_from_config
from kvsim.sizing.model_table import ROWS

ELEMENT_BYTES = {"float8": 1, "float16": 2, "bfloat16": 2, "float32": 4}

# Well-known models whose cache the formulas do not describe: what a refusal says.
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
        name: what was asked for.
        close: names that are spelled alike.
        reason: why it is refused, for a model that is known; None for an unknown one.
    """

    def __init__(self, name: str, close: tuple[str, ...], reason: str | None = None) -> None:
        super().__init__(name)
        self.name, self.close, self.reason = name, close, reason


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What sizes and speeds depend on.

    Attributes:
        name: in this catalogue; ``custom`` for one read from a config.
        source: repository of its config.
        dtype: of the published weights.
        parameters: weights, tied ones once.
        active_parameters: those that one token passes through.
        config: the fields of its Transformers config.
    """

    name: str
    source: str
    dtype: str
    parameters: int
    active_parameters: int
    config: Mapping[str, Any]

    @property
    def serving_dtype(self) -> str:
        """What vLLM's ``--dtype auto`` computes in: 32-bit weights are served in 16 bits."""
        return "float16" if self.dtype == "float32" else self.dtype

    @property
    def kv_dtype(self) -> str:
        """What keys and values are kept in unless asked otherwise (8-bit weights: bfloat16)."""
        return "bfloat16" if self.dtype == "float8" else self.serving_dtype

    @property
    def max_positions(self) -> int | None:
        """Positions that the model was made for; None where its config sets no limit."""
        for key in ("max_position_embeddings", "n_positions", "max_seq_len"):
            if self.config.get(key):
                return int(self.config[key])
        return None

    def max_length_of(self, longest: int) -> int:
        """Maximum length that a longest request of so many tokens needs, within the positions."""
        return min(longest, self.max_positions or longest)

    @property
    def query_heads(self) -> int:
        """Heads of a layer, for the arithmetic of attention."""
        heads = self.config.get("num_attention_heads") or self.config["n_head"]
        return int(heads)

    def weight_bytes(self, dtype: str | None = None) -> int:
        """Bytes of all weights, in their serving dtype or another."""
        return self.parameters * ELEMENT_BYTES[dtype or self.serving_dtype]

    def geometry(self, kv_dtype: str | None = None) -> KVGeometry:
        """Shape of its cache.

        Raises:
            kvsim.sizing.geometry.UnsupportedGeometryError: a cache of another kind.
        """
        return geometry_from_config(self.config, ELEMENT_BYTES[kv_dtype or self.kv_dtype])


def _catalogue() -> dict[str, ModelFacts]:
    return {
        name: ModelFacts(name, source, dtype, count, active or count, MappingProxyType(config))
        for name, source, dtype, count, active, config in ROWS
    }


MODELS: Mapping[str, ModelFacts] = MappingProxyType(_catalogue())


def find_model(name: str) -> ModelFacts:
    """A model by its name here or that of its repository; capitals do not matter.

    Raises:
        UnknownModelError: with names that are close, or the reason why it is refused.
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
