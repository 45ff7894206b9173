"""Memory that vLLM needs before its KV cache: a range for each part.

    CUDA memory x utilisation                          the GPU's total as CUDA reports it
      - weights                                        of one rank, and its buffers
      - activations   the larger of  forward pass      max_num_batched_tokens x its widest layer
                                     sampling          max_num_seqs x vocabulary
      - non-torch     CUDA context, NCCL
      - CUDA graphs   since 0.21; before, they were captured outside of the share
      = KV cache

Sources: ``determine_available_memory``, ``profile_run`` and the defaults in ``arg_utils.py`` of
vLLM 0.7 to 0.33; the widths of the ranges are those of public start-up logs, which
``make plan-check`` lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from kvsim.core.blocks import blocks_needed
from kvsim.sizing.fields import (
    HIDDEN_SIZE,
    attention_heads,
    first_named,
    head_dim_of,
    kv_heads_of,
    layer_count,
)
from kvsim.sizing.gpus import GPUFacts
from kvsim.sizing.layers import layer_kinds, stage_layers
from kvsim.sizing.models import MXFP4_BYTES, ModelFacts

Version = tuple[int, int]
TESTED: Version = (0, 33)
OLDEST: Version = (0, 6)
# The engine that profiled with whole prompts; more sequences at a time; top-k and top-p without
# sorting; a larger share; CUDA graphs within the share.
_V1, _MANY_SEQS, _NO_SORT = (0, 8), (0, 9), (0, 17)
_V0_REMOVED, _BEFORE_AMPERE = (0, 11), ("v100", "t4")
_LARGER_SHARE, _GRAPHS_COUNT, _LARGEST_TIER = (0, 20), (0, 21), (0, 32)
_GIB = 1 << 30
_LARGE, _LARGEST = 70 * _GIB, 160 * _GIB
_CHUNKED_FROM = 32_768  # maximum length from which vLLM 0.7 cut prompts by default
# Of a logit while tokens are sampled: 16 bits, 32 bits, sorted values and their indices twice,
# probabilities. Without sorting: 16 bits, 32 bits, probabilities, noise.
_SORTED, _UNSORTED = (38.0, 38.8, 40.0), (4.0, 18.0, 24.0)
_ROW_WIDTHS = 3.5  # hidden states of a token that a layer holds beside its feed-forward part
_VOCABULARY, _BITS16 = 50_000, 2


class Range(NamedTuple):
    """Bytes: what is expected, between the least and the most."""

    low: int
    middle: int
    high: int

    @classmethod
    def of(cls, *gib: float) -> Range:
        """From GiB."""
        low, middle, high = (int(value * _GIB) for value in gib)
        return cls(low, middle, high)

    @classmethod
    def exact(cls, size: int) -> Range:
        """A known size."""
        return cls(size, size, size)

    def plus(self, other: Range) -> Range:
        """The sum."""
        return Range(*map(sum, zip(self, other, strict=True)))

    def times(self, count: int) -> Range:
        """The same on ``count`` GPUs."""
        return Range(self.low * count, self.middle * count, self.high * count)


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options of ``vllm serve`` that decide what it needs beside the cache.

    Attributes:
        version: of vLLM, (major, minor).
        max_num_batched_tokens: None: the default of the version for the GPU.
        max_num_seqs: None: likewise.
        pipeline_parallel: stages of the model. ``data_parallel``: engines, which share experts.
        expert_parallel: whole experts on a rank, rather than a part of each: as many bytes.
        max_loras: LoRA adapters in a step, each with a place of its own for ``max_lora_rank``.
        language_model_only: without encoders of images and sound.
    """

    version: Version = TESTED
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    enforce_eager: bool = False
    pipeline_parallel: int = 1
    data_parallel: int = 1
    expert_parallel: bool = False
    max_loras: int = 0
    max_lora_rank: int = 16
    language_model_only: bool = False

    def utilisation(self) -> float:
        """The default of ``--gpu-memory-utilization``."""
        return 0.92 if self.version >= _LARGER_SHARE else 0.9

    def batched_tokens(self, gpu: GPUFacts, max_length: int) -> int:
        """Tokens of a step, at most."""
        if self.max_num_batched_tokens is not None:
            return self.max_num_batched_tokens
        if not self.is_v1(gpu):
            return max(max_length, 2048) if max_length <= _CHUNKED_FROM else 2048
        if self.version >= _LARGEST_TIER and gpu.memory_bytes >= _LARGEST:
            return 16_384
        return 8192 if self._is_large(gpu) else 2048

    def sequences(self, gpu: GPUFacts, max_length: int) -> int:
        """Sequences of a step, at most."""
        most = self.max_num_seqs
        if most is None:
            most = 1024 if self.version >= _MANY_SEQS and self._is_large(gpu) else 256
        return min(most, self.batched_tokens(gpu, max_length))

    def is_v1(self, gpu: GPUFacts) -> bool:
        """Whether engine V1 runs; until 0.11 GPUs before Ampere kept V0, which cut no prompts."""
        old = gpu.name.startswith(_BEFORE_AMPERE)
        return self.version >= (_V0_REMOVED if old else _V1)

    def _is_large(self, gpu: GPUFacts) -> bool:
        return gpu.memory_bytes >= _LARGE and not gpu.name.startswith(("a100", "gb10"))


# The first start on a machine compiles, and keeps some of it; workspaces of kernels for experts;
# weights of an image encoder, and its run while memory is measured.
_WIDENED = Range.of(0, 0.2, 1.2)
_COMPILING, _EXPERTS = Range.of(0, 0, 0.3), Range.of(0, 0.3, 3.0)
_ENCODER, _ENCODER_RUN = Range.of(0, 0.5, 1.1), Range.of(0, 0.5, 1.5)
# Of the bytes of adapters: torch's allocator gives out memory in segments.
_ADAPTERS = (1.0, 1.09, 1.2)
_MULTIMODAL = ("gemma3_text", "gemma3n_text", "gemma4_text", "llama4_text", "qwen3_5_text",
               "qwen3_5_moe_text")  # fmt: skip


class Overhead(NamedTuple):
    """Bytes on one GPU.

    ``buffers``: of the model in addition to its weights, such as the table of rotary positions,
    parts that each rank has a copy of, an image encoder, and places for LoRA adapters.
    """

    weights: Range
    buffers: Range
    activations: Range
    non_torch: Range
    graphs: Range


def rank_overhead(
    model: ModelFacts,
    gpu: GPUFacts,
    options: ServerOptions,
    max_length: int,
    tensor_parallel: int = 1,
    dtype: str | None = None,
) -> Overhead:
    """What one rank needs beside the KV cache: of several pipeline stages the largest."""
    weights = rank_weights(model, tensor_parallel, dtype, options)
    version, graphs = options.version, Range.exact(0)
    if version >= _GRAPHS_COUNT and not options.enforce_eager:
        graphs = Range.of(0, 0.3, 0.9)
    if gpu.name == "gb10":  # shared with the CPU, whose caches count
        non_torch = Range.of(0, 1.2, 3.0)
    elif tensor_parallel * options.pipeline_parallel * options.data_parallel == 1:
        non_torch = Range.of(0, 0.1, 0.35)
    elif gpu.memory_bytes >= _LARGE or gpu.name.startswith("a100"):  # linked by NVLink
        non_torch = Range.of(0.6, 1.2, 2.1)
    else:
        non_torch = Range.of(0.15, 0.3, 0.6)
    activations = _activations(model, gpu, options, max_length, tensor_parallel)
    # Of latent attention every rank has a copy of much.
    more = (0.0, 0.04, 0.1) if model.text.get("kv_lora_rank") else (0.0, 0.006, 0.02)
    buffers = Range(*(int(weights * part) for part in more))
    if options.max_loras:
        adapters = options.max_loras * adapter_bytes(
            model, options.max_lora_rank, tensor_parallel, options.pipeline_parallel
        )
        buffers = buffers.plus(Range(*(int(adapters * part) for part in _ADAPTERS)))
    has_encoder = model.text.get("model_type") in _MULTIMODAL or "vision_config" in model.config
    if has_encoder and not options.language_model_only:
        cache = encoder_cache(model, options.batched_tokens(gpu, max_length))
        run = Range(*(max(cache, size) for size in _ENCODER_RUN))
        buffers, activations = buffers.plus(_ENCODER), activations.plus(run)
    return Overhead(Range.exact(weights), buffers, activations, non_torch, graphs)


def encoder_cache(model: ModelFacts, max_num_batched_tokens: int) -> int:
    """Bytes of the embeddings that vLLM keeps of images, at least.

    More for a single item of more tokens: ``compute_mm_encoder_budget`` in
    ``vllm/v1/core/encoder_cache_manager.py``.
    """
    return max_num_batched_tokens * _hidden(model.text) * _BITS16


def rank_weights(
    model: ModelFacts,
    tensor_parallel: int,
    dtype: str | None = None,
    options: ServerOptions = ServerOptions(),
) -> int:
    """Bytes of the weights of one rank; of several pipeline stages those of the largest."""
    weights = model.weight_bytes(dtype)
    if model.weights is None and model.dtype == "mxfp4":  # experts padded for kernels
        hidden, inner = (_number(model, f"{name}_size", 1) for name in ("hidden", "intermediate"))
        padding = _padded(hidden, 256) * _padded(inner, 128) - 1
        weights += int(padding * model.expert_parameters * MXFP4_BYTES)
    if options.data_parallel > 1:  # engines share the experts
        experts = model.expert_bytes(dtype)
        weights -= experts - blocks_needed(experts, options.data_parallel)
    if options.pipeline_parallel > 1:
        weights = _stage_weights(model, weights, options.pipeline_parallel)
    return blocks_needed(weights, tensor_parallel)


def _stage_weights(model: ModelFacts, weights: int, stages: int) -> int:
    """Bytes of the largest stage: the first has the embeddings, the last the output projection."""
    vocabulary = model.vocabulary_parameters * _BITS16
    layers = max(0, weights - (1 if model.is_tied else 2) * vocabulary)
    counts = stage_layers(len(layer_kinds(model.text)), stages)
    whole = sum(counts)
    ends = max(counts[0], counts[-1])
    return max(layers * ends // whole + vocabulary, layers * max(counts) // whole)


def _padded(size: int, multiple: int) -> float:
    return blocks_needed(size, multiple) * multiple / size


def adapter_bytes(model: ModelFacts, rank: int, tensor_parallel: int = 1, stages: int = 1) -> int:
    """Bytes of one LoRA adapter on a rank: two 16-bit matrices for each linear layer.

    Of experts none. Column-parallel layers share the second matrix, row-parallel ones the first
    (``vllm/lora/layers``).
    """
    config = model.text
    hidden, ranks = _hidden(config), tensor_parallel
    heads = attention_heads(config)
    head = head_dim_of(config, heads)
    query = heads * head // ranks
    keys = max(1, kv_heads_of(config, heads) // ranks) * head
    elements = 2 * (hidden + query) + 2 * (hidden + keys)
    if model.expert_share == 1:
        elements += 3 * (hidden + _inner(config) // ranks)
    vocabulary = _number(model, "vocab_size", _VOCABULARY) // ranks
    elements = max(stage_layers(layer_count(config), stages)) * elements
    elements += 2 * (hidden + vocabulary)
    return elements * rank * _BITS16


def _activations(
    model: ModelFacts, gpu: GPUFacts, options: ServerOptions, max_length: int, ranks: int
) -> Range:
    tokens, is_v1 = options.batched_tokens(gpu, max_length), options.is_v1(gpu)
    forward = tokens * token_activation(model.text, ranks)
    logits = options.sequences(gpu, max_length) * _number(model, "vocab_size", _VOCABULARY)
    bytes_of = _UNSORTED if options.version >= _NO_SORT else _SORTED
    low, middle, high = (int(logits * size) for size in bytes_of)
    if not is_v1 and max_length > _CHUNKED_FROM:  # prompts that are cut may sample nothing
        low, middle = 0, (forward + middle) // 2
    found = Range(max(int(0.9 * forward), low), max(forward, middle), max(int(1.2 * forward), high))
    if is_v1:
        found = found.plus(_COMPILING)
    if model.weights is not None and model.weights < model.parameters:  # 4 bits, widened to 16
        found = found.plus(_WIDENED)
    return found.plus(_EXPERTS) if model.expert_share < 1 else found


def token_activation(config: Mapping[str, Any], ranks: int) -> int:
    """Bytes of a token in the widest layer of a forward pass, in 16 bits.

    Gate and up projections and their product; of experts those of all that a token uses.
    """
    hidden, inner = _hidden(config), _inner(config)
    width = 3 * inner / ranks
    used = first_named(config, "num_experts_per_tok", "moe_topk", "top_k_experts")
    if used:
        expert = int(first_named(config, "moe_intermediate_size") or inner) / ranks
        width = int(used) * (2 * max(2 * expert, hidden) + 1.5 * expert)
    return int((width + _ROW_WIDTHS * hidden) * _BITS16)


def _hidden(config: Mapping[str, Any]) -> int:
    return int(first_named(config, *HIDDEN_SIZE) or 4096)


def _inner(config: Mapping[str, Any]) -> int:
    inner = first_named(config, "intermediate_size", "n_inner", "ffn_dim") or 4 * _hidden(config)
    return int(max(inner) if isinstance(inner, list) else inner)  # a list: of each layer


def _number(model: ModelFacts, name: str, default: int) -> int:
    return int(first_named(model.text, name) or first_named(model.config, name) or default)
