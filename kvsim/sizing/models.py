"""Catalogue of models: weights, and the KV cache from their configs.

name ─► line of catalogue.jsonl ─► config ─► layer_caches ─► bytes of each layer

A line has the fields of a Transformers config that caches and weights depend on, and where the
config was read; ``verified``: as published, or quoted in public code. ``parameters`` counts the
weights that Transformers creates from it, tied ones once and those of other modalities not; where
it has no such class, the publisher's rounded number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kvsim.base.spelling import nearest
from kvsim.sizing.fields import (
    Config,
    MissingFieldError,
    UnsupportedGeometryError,
    attention_heads,
    first_named,
    hidden_size,
    text_config,
)
from kvsim.sizing.layers import EXPANDED_LATENT, Serving, layer_caches
from kvsim.sizing.layout import LayerCache, token_bytes

ELEMENT_BYTES = {"float8": 1, "float16": 2, "bfloat16": 2, "float32": 4}
MXFP4_BYTES = 17 / 32
# Bytes of a weight in a quantised linear layer, with its scales: of 128 weights in w4 16 bits and a
# zero point of 4 (AWQ, GPTQ), in nvfp4 of 16 weights 8 bits.
QUANTISED = {"fp8": 1.004, "int8": 1.004, "w4": 0.52, "nvfp4": 0.5625}

# Well-known models with an unsupported cache, and the reason.
REFUSED = {
    "mamba": "recurrent",
    "rwkv": "recurrent",
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


_FEW_BITS = ("float8", "mxfp4")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What KV cache size and speed depend on.

    Attributes:
        name: catalogue name; ``custom`` for a model read from a config.
        hub: repository of the weights.
        dtype: of the published weights.
        parameters: number of weights, tied ones counted once.
        active_parameters: weights used per token; ``expert_parameters``: all weights of experts.
        config: fields of the Transformers config.
        source: where the config was read; ``verified``: as published, or quoted in public code.
        weights: bytes of the weights as they are published; None: by ``parameters`` and ``dtype``.
    """

    name: str
    hub: str
    dtype: str
    parameters: int
    active_parameters: int
    expert_parameters: int
    config: Mapping[str, Any]
    source: str = ""
    verified: bool = False
    weights: int | None = None

    @property
    def serving_dtype(self) -> str:
        """The dtype of vLLM's ``--dtype auto``: 32-bit weights are served in 16 bits."""
        return "float16" if self.dtype == "float32" else self.dtype

    @property
    def kv_dtype(self) -> str:
        """Default dtype of K and V: bfloat16 for weights of fewer bits."""
        return "bfloat16" if self.dtype in ("float8", "mxfp4") else self.serving_dtype

    @property
    def text(self) -> Config:
        """The config of the language model."""
        return text_config(self.config)

    @property
    def max_positions(self) -> int | None:
        """Position limit of the model; None if its config has no number above 0.

        Raises:
            MissingFieldError: a negative number.
        """
        found = first_named(self.text, "max_position_embeddings", "n_positions", "max_seq_len")
        is_number = isinstance(found, int | float) and not isinstance(found, bool)
        if is_number and found < 0:
            raise MissingFieldError("max_position_embeddings")
        return _scaled(int(found), self.text) if is_number and found >= 1 else None

    def max_length_of(self, longest: int) -> int:
        """Return the maximum length for a longest request of ``longest`` tokens."""
        return min(longest, self.max_positions or longest)

    @property
    def query_heads(self) -> int:
        """Query heads of a layer."""
        return attention_heads(self.text)

    @property
    def expert_share(self) -> float:
        """Weights of experts that a token uses, over all of them; 1 without experts."""
        rest = self.parameters - self.expert_parameters
        return (
            (self.active_parameters - rest) / self.expert_parameters
            if self.expert_parameters
            else 1.0
        )

    @property
    def hidden_size(self) -> int:
        """Elements that a token has between layers."""
        return hidden_size(self.text)

    @property
    def vocabulary_parameters(self) -> int:
        """Weights of the embeddings; of the output projection as many, unless they are tied."""
        vocabulary = first_named(self.text, "vocab_size") or first_named(self.config, "vocab_size")
        return int(vocabulary or 0) * self.hidden_size

    @property
    def is_tied(self) -> bool:
        """Whether the output projection is the table of embeddings."""
        return bool(
            self.text.get("tie_word_embeddings", self.config.get("tie_word_embeddings", False))
        )

    def weight_bytes(self, dtype: str | None = None) -> int:
        """Return the bytes of all weights in ``dtype``, by default the serving dtype.

        Weights of 8 or 4 bits stay as they are published.
        """
        if self.weights is not None:
            return self.weights
        dtype = self.dtype if self.dtype in _FEW_BITS else dtype or self.serving_dtype
        if dtype == "mxfp4":  # the experts alone
            rest = self.parameters - self.expert_parameters
            return self.expert_bytes() + rest * ELEMENT_BYTES["bfloat16"]
        return self.parameters * ELEMENT_BYTES[dtype]

    def expert_bytes(self, dtype: str | None = None) -> int:
        """Return the bytes of the experts; of mxfp4 with a scale for every 32 weights."""
        if self.weights is None and self.dtype == "mxfp4":
            return round(self.expert_parameters * MXFP4_BYTES)
        return self.weight_bytes(dtype) * self.expert_parameters // self.parameters

    def quantised(self, kind: str) -> ModelFacts:
        """Return the model with its linear layers in ``kind``, one of :data:`QUANTISED`.

        Embeddings and the output projection stay in 16 bits, as in published checkpoints.
        """
        kept = self.vocabulary_parameters * (1 if self.is_tied else 2)
        linear = max(0, self.parameters - kept) * QUANTISED[kind]
        return replace(self, weights=round(linear) + kept * ELEMENT_BYTES["bfloat16"])

    def caches(
        self,
        kv_dtype: str | None = None,
        gpus: int = 1,
        block_size: int = 16,
        *,
        dtype: str | None = None,
        prefix_caching: bool = True,
    ) -> list[LayerCache]:
        """Return what its layers keep on each of ``gpus`` tensor-parallel ranks.

        ``dtype`` is that of states, by default the default of K and V.

        Raises:
            kvsim.sizing.fields.UnsupportedGeometryError: another kind of cache, or heads that so
                many ranks cannot share.
        """
        width = ELEMENT_BYTES[kv_dtype or self.kv_dtype]
        state = ELEMENT_BYTES[dtype or self.kv_dtype]
        serving = Serving(block_size, state, width, gpus, prefix_caching)
        return layer_caches(self.config, serving)

    @property
    def block_size(self) -> int:
        """Tokens of a block by default: 64 for latent attention (FlashMLA), otherwise 16."""
        kind = self.text.get("model_type")
        return 64 if self.text.get("kv_lora_rank") and kind != EXPANDED_LATENT else 16

    def token_bytes(self, kv_dtype: str | None = None, gpus: int = 1) -> int:
        """Return the bytes of a token on all ranks, copies included.

        Windows and chunks count as if they kept every token.

        Raises:
            kvsim.sizing.fields.UnsupportedGeometryError: as :meth:`caches`, or a state, which does
                not grow with tokens.
        """
        caches = self.caches(kv_dtype, gpus)
        if any(cache.kind == "state" for cache in caches):
            raise UnsupportedGeometryError("recurrent", str(self.text.get("model_type")))
        return token_bytes(caches) * gpus


# Kinds of rope scaling whose configs have the longer limit already.
_MOST_FACTOR = 1 << 10
_EXTENDED = ("default", "su", "longrope", "llama3", "mrope")


def _scaled(positions: int, config: Config) -> int:
    """Positions with rope scaling, as vLLM's ``_get_and_verify_max_len`` counts them."""
    rope = config.get("rope_scaling") or config.get("rope_parameters")
    if not isinstance(rope, Mapping) or str(config.get("model_type")).startswith("gemma3"):
        return positions
    kind = str(rope.get("rope_type") or rope.get("type") or "default")
    factor, original = rope.get("factor"), rope.get("original_max_position_embeddings")
    if kind in _EXTENDED or not isinstance(factor, int | float) or not 1 <= factor <= _MOST_FACTOR:
        return positions
    if "yarn" not in kind:
        return int(positions * factor)
    return max(positions, int(original * factor)) if isinstance(original, int) else positions


def _catalogue() -> dict[str, ModelFacts]:
    lines = Path(__file__).with_name("catalogue.jsonl").read_text(encoding="utf-8").splitlines()
    return {facts.name: facts for facts in map(_from_line, lines)}


def _from_line(line: str) -> ModelFacts:
    row = json.loads(line)
    row["active_parameters"] = row.pop("active", row["parameters"])
    row["expert_parameters"] = row.pop("experts", 0)
    return ModelFacts(**row)


MODELS: Mapping[str, ModelFacts] = MappingProxyType(_catalogue())


def _variant(facts: ModelFacts, name: str, kinds: list[str]) -> ModelFacts:
    """A model under a published name, quantised where the name says so."""
    found = facts.quantised(min(kinds, key=QUANTISED.__getitem__)) if kinds else facts
    return replace(found, hub=name) if "/" in name and " " not in name else found


# Words that published names have more than the catalogue's: the same architecture and size.
_VARIANTS = frozenset(("instruct", "chat", "it", "base", "hf", "bf16", "dynamic", "thinking"))
_KINDS = {"fp8": "fp8", "int8": "int8", "w8a8": "int8", "awq": "w4", "gptq": "w4", "int4": "w4",
          "w4a16": "w4", "4bit": "w4", "nvfp4": "nvfp4"}  # fmt: skip


def find_model(name: str) -> ModelFacts:
    """Find a model by catalogue or repository name; ignores case.

    Variants such as ``-Instruct`` are the same model, quantised ones such as ``-AWQ`` the same with
    other weights.

    Raises:
        UnknownModelError: with similar names, or the reason why it is unsupported.
    """
    wanted, kinds = name.strip().lower().replace(" ", "-"), list[str]()
    while True:
        for facts in MODELS.values():
            hub = facts.hub.lower()
            if wanted in (facts.name, hub, hub.rpartition("/")[2]):
                return _variant(facts, name, kinds) if wanted != name.lower() else facts
        rest, _, last = wanted.rpartition("-")
        if not rest or not (last in _VARIANTS or last in _KINDS):
            break
        kinds += [_KINDS[last]] if last in _KINDS else []
        wanted = rest
        if wanted.rpartition("/")[2] in MODELS:
            wanted = wanted.rpartition("/")[2]
    short = name.lower().rpartition("/")[2]
    for refused, reason in REFUSED.items():
        if short == refused or short.startswith(f"{refused}-"):
            raise UnknownModelError(name, (), reason)
    raise UnknownModelError(name, nearest(short, MODELS, 3))
