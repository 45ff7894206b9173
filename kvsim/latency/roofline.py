"""Roofline latency: arithmetic, memory traffic, and a fixed cost.

    chunks of a step        ─► StepWork: tokens, K and V read, query-key pairs
    model + GPU             ─► Roofline: seconds of arithmetic, seconds of memory traffic
    seconds = fixed + links + max(arithmetic, memory)   or the sum of all

Source: Williams et al., "Roofline", CACM 52(4), 2009. With efficiencies of 1 and no fixed cost it
is a lower bound that no step beats. :data:`ASSUMED` are efficiencies that were published;
:mod:`kvsim.latency.calibrate` fits them to records.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from kvsim.sizing.fields import first_of, layer_count
from kvsim.sizing.gpus import GPUFacts
from kvsim.sizing.layout import LayerCache, token_bytes
from kvsim.sizing.models import ELEMENT_BYTES, ModelFacts

Overlap = Literal["max", "sum"]
# Factor beyond the recorded batches at which their times say nothing.
_FAR = 2


class StepWork(NamedTuple):
    """What one step computes.

    Attributes:
        prefill_tokens: prompt tokens, or recomputed ones.
        decode_tokens: requests that get their next token.
        kv_read_tokens: slots that attention reads: each request's written ones, once.
        attention_pairs: query-key pairs over all query tokens.
    """

    prefill_tokens: int = 0
    decode_tokens: int = 0
    kv_read_tokens: int = 0
    attention_pairs: int = 0

    @property
    def tokens(self) -> int:
        """Tokens that pass through the layers."""
        return self.prefill_tokens + self.decode_tokens

    @classmethod
    def of(cls, chunks: Iterable[tuple[int, int, bool]]) -> StepWork:
        """Sum the work of (start, count, is a decode) over the requests of a step."""
        prefill = decode = read = pairs = 0
        for start, count, is_decode in chunks:
            if is_decode:
                decode += count
            else:
                prefill += count
            read += start + count
            pairs += count * start + count * (count + 1) // 2
        return cls(prefill, decode, read, pairs)


@dataclass(frozen=True, slots=True)
class LinearLatency:
    """A linear cost model: seconds per step, and per unit of work.

    Attributes:
        request_s: from a request's arrival until the engine has it; no part of a step.
    """

    fixed_s: float = 0.0
    per_prefill_token_s: float = 0.0
    per_decode_token_s: float = 0.0
    per_kv_token_s: float = 0.0
    per_pair_s: float = 0.0
    request_s: float = 0.0

    def batch_s(self, decodes: float) -> float:  # noqa: ARG002
        """Return the seconds of a batch beyond the sum of costs."""
        return 0.0

    def seconds(self, work: StepWork) -> float:
        """Return the duration of a step."""
        if not work.tokens:
            return 0.0
        return (
            self.fixed_s
            + self.batch_s(work.decode_tokens)
            + self.per_prefill_token_s * work.prefill_tokens
            + self.per_decode_token_s * work.decode_tokens
            + self.per_kv_token_s * work.kv_read_tokens
            + self.per_pair_s * work.attention_pairs
        )


@dataclass(frozen=True, slots=True)
class BatchLatency(LinearLatency):
    """Linear costs, and seconds of each batch beyond them.

    Kernels and tiles depend on the rows of a product, so a step's time is no line in the batch.
    Source: Vidur (Agrawal et al., MLSys 2024), which profiles products by their tokens.

    Attributes:
        batches: (requests that decode, seconds beyond the sum of costs), ascending. Between them
            seconds are interpolated; outside the nearest applies.
    """

    batches: tuple[tuple[float, float], ...] = ()

    def batch_s(self, decodes: float) -> float:
        """Return the seconds of a batch beyond the sum of costs."""
        if not self.batches:
            return 0.0
        at, extra = np.array(self.batches).T
        return float(np.interp(decodes, at, extra))

    def seen(self) -> tuple[float, float]:
        """Return the least and most of the usual batches, without those of a start and an end."""
        usual = self.batches[1:] or self.batches
        return usual[0][0], usual[-1][0]

    def is_extrapolated(self, running: float) -> bool:
        """Whether so many requests at once are far from every usual batch."""
        if not self.batches:
            return False
        least, most = self.seen()
        return not least / _FAR <= running <= _FAR * most


@dataclass(frozen=True, slots=True)
class Efficiencies:
    """Achieved share of the peak of each operation, at most 1.

    Attributes:
        weights: of the bandwidth, reading weights. 72 % in decoding with Llama-2-7B on an A100:
            PyTorch blog, "Accelerating Generative AI with PyTorch II: GPT, Fast", 2023.
        cache: of the bandwidth, reading and writing K and V. 3,000 of 3,350 GB/s on an H800:
            README of DeepSeek's FlashMLA, 2025.
        products: of the arithmetic, matrix products. 80 to 90 %: Dao, "FlashAttention-2",
            arXiv 2307.08691, section 1.
        attention: of the arithmetic, queries with keys and values. 73 % on an A100:
            FlashAttention-2, abstract; 75 % on an H100: FlashAttention-3, arXiv 2407.08608.
    """

    weights: float = 0.72
    cache: float = 0.89
    products: float = 0.8
    attention: float = 0.73


ASSUMED = Efficiencies()
IDEAL = Efficiencies(1.0, 1.0, 1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Roofline:
    """Arithmetic and memory traffic of a model on a GPU.

    Attributes:
        weight_bytes: read in every step.
        expert_bytes: weights of experts; a step reads those that its tokens select.
        expert_share: experts per token / all experts.
        kv_token_bytes: K and V of one token.
        token_flops: of one token through its active weights.
        pair_flops: of one query-key pair, over all layers and heads.
        bandwidth: bytes per second, summed over GPUs.
        flops: FLOP/s, summed over GPUs.
        fixed_s: fixed cost of a step in seconds.
        peer_token_s: seconds of a token on the links between GPUs; nothing overlaps them.
        efficiencies: achieved shares of the peaks.
        overlap: ``max``: traffic and arithmetic overlap; ``sum``: they do not.
    """

    weight_bytes: float
    kv_token_bytes: float
    token_flops: float
    pair_flops: float
    bandwidth: float
    flops: float
    expert_bytes: float = 0.0
    expert_share: float = 1.0
    fixed_s: float = 0.0
    peer_token_s: float = 0.0
    efficiencies: Efficiencies = IDEAL
    overlap: Overlap = "max"

    def memory_s(self, work: StepWork) -> float:
        """Return the seconds of memory traffic: weights, K and V read, K and V written."""
        if not work.tokens:
            return 0.0
        # Tokens select experts independently and uniformly.
        chosen = 1 - (1 - self.expert_share) ** work.tokens
        weights = self.weight_bytes + self.expert_bytes * chosen
        cache = self.kv_token_bytes * (work.kv_read_tokens + work.tokens)
        share = self.efficiencies
        return (weights / share.weights + cache / share.cache) / self.bandwidth

    def compute_s(self, work: StepWork) -> float:
        """Return the seconds of arithmetic."""
        products = self.token_flops * work.tokens
        attention = self.pair_flops * work.attention_pairs
        share = self.efficiencies
        return (products / share.products + attention / share.attention) / self.flops

    def seconds(self, work: StepWork) -> float:
        """Return the duration of a step."""
        if not work.tokens:
            return 0.0
        memory, compute = self.memory_s(work), self.compute_s(work)
        both = max(memory, compute) if self.overlap == "max" else memory + compute
        return self.fixed_s + self.peer_token_s * work.tokens + both


Latency = LinearLatency | Roofline


def roofline(
    model: ModelFacts,
    gpu: GPUFacts,
    gpus: int = 1,
    dtype: str | None = None,
    kv_dtype: str | None = None,
    efficiencies: Efficiencies = ASSUMED,
    engines: int = 1,
) -> Roofline:
    """Return the roofline of a model on ``gpus`` GPUs.

    Tensor-parallel ranks sum the output of attention and of the MLP of each layer (Shoeybi et al.,
    "Megatron-LM", arXiv 1909.08053), in a ring at the whole bandwidth of their links: the latency
    of a small message does not count, nor do the tokens that engines send to each other's experts.

    Windows and chunks are ignored: such layers attend to all tokens. States are not read. A rank
    reads its own copy of what heads cannot be divided into.

    Args:
        engines: in data parallel on all GPUs together, which share experts alone.

    Raises:
        kvsim.sizing.fields.UnsupportedGeometryError: another kind of cache.
        ValueError: no GPU.
    """
    if gpus < 1:
        raise ValueError(f"{gpus} GPUs compute nothing")
    caches, ranks = model.caches(kv_dtype), gpus // engines
    width = ELEMENT_BYTES["float32" if dtype == "float32" else "float16"]
    summed = 2 * layer_count(model.text) * model.hidden_size * width
    experts = model.expert_bytes(dtype)
    return Roofline(
        weight_bytes=(model.weight_bytes(dtype) - experts) * engines,
        expert_bytes=experts,
        expert_share=model.expert_share,
        kv_token_bytes=token_bytes(model.caches(kv_dtype, ranks)) * ranks,
        token_flops=2.0 * model.active_parameters,
        pair_flops=2.0 * model.query_heads * sum(_pair_elements(model, each) for each in caches),
        bandwidth=gpu.bandwidth * gpus,
        flops=gpu.flops * gpus,
        peer_token_s=2 * (ranks - 1) / ranks * summed / gpu.ring_bandwidth(ranks) / engines,
        efficiencies=efficiencies,
    )


def least_costs(ideal: Roofline, max_num_batched_tokens: int) -> LinearLatency:
    """Return the costs below which a step would beat a roofline.

    A step reads the weights of at least one token, and the K and V that it attends to. The largest
    step of prompt tokens takes at least its arithmetic, which hides the reading of weights.
    """
    weights = ideal.weight_bytes + ideal.expert_bytes * ideal.expert_share
    fixed = weights / ideal.bandwidth
    token = ideal.token_flops / ideal.flops
    return LinearLatency(
        fixed_s=fixed,
        per_prefill_token_s=max(0.0, token - fixed / max_num_batched_tokens),
        per_kv_token_s=ideal.kv_token_bytes / ideal.bandwidth,
    )


def _pair_elements(model: ModelFacts, cache: LayerCache) -> int:
    """Elements of a key and of a value that a query meets in a layer."""
    if cache.kind == "state" or not cache.shape[0]:  # an indexer has no heads
        return 0
    if cache.kind == "latent":  # the value is the part without rotary positions
        return 2 * cache.shape[1] - first_of(model.text, "qk_rope_head_dim")
    return cache.shape[1] + cache.shape[2]
