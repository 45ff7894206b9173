"""Roofline latency: arithmetic, memory traffic, and a fixed cost.

    chunks of a step        ─► StepWork: tokens, K and V read, query-key pairs
    model + GPU             ─► Roofline: seconds of arithmetic, seconds of memory traffic
    seconds = fixed + max(arithmetic, memory)          or their sum

Source: Williams et al., "Roofline", CACM 52(4), 2009. With efficiencies of 1 and no fixed cost it
is a lower bound, not a prediction; :mod:`kvsim.latency.calibrate` fits it to records.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from kvsim.sizing.fields import first_of
from kvsim.sizing.gpus import GPUFacts
from kvsim.sizing.layout import LayerCache, token_bytes
from kvsim.sizing.models import ModelFacts

Overlap = Literal["max", "sum"]


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


class Latency(Protocol):
    """A latency model."""

    def seconds(self, work: StepWork) -> float:
        """Return the duration of a step; 0 without tokens."""


@dataclass(frozen=True, slots=True)
class LinearLatency:
    """A linear cost model: seconds per step, and per unit of work."""

    fixed_s: float = 0.0
    per_prefill_token_s: float = 0.0
    per_decode_token_s: float = 0.0
    per_kv_token_s: float = 0.0
    per_pair_s: float = 0.0

    def seconds(self, work: StepWork) -> float:
        """Return the duration of a step."""
        if not work.tokens:
            return 0.0
        return (
            self.fixed_s
            + self.per_prefill_token_s * work.prefill_tokens
            + self.per_decode_token_s * work.decode_tokens
            + self.per_kv_token_s * work.kv_read_tokens
            + self.per_pair_s * work.attention_pairs
        )


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
        memory_efficiency, compute_efficiency: achieved share of the peak.
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
    memory_efficiency: float = 1.0
    compute_efficiency: float = 1.0
    overlap: Overlap = "max"

    def memory_s(self, work: StepWork) -> float:
        """Return the seconds of memory traffic: weights, K and V read, K and V written."""
        if not work.tokens:
            return 0.0
        # Tokens select experts independently and uniformly.
        chosen = 1 - (1 - self.expert_share) ** work.tokens
        slots = work.kv_read_tokens + work.tokens
        moved = self.weight_bytes + self.expert_bytes * chosen + self.kv_token_bytes * slots
        return moved / (self.bandwidth * self.memory_efficiency)

    def compute_s(self, work: StepWork) -> float:
        """Return the seconds of arithmetic."""
        done = self.token_flops * work.tokens + self.pair_flops * work.attention_pairs
        return done / (self.flops * self.compute_efficiency)

    def seconds(self, work: StepWork) -> float:
        """Return the duration of a step."""
        if not work.tokens:
            return 0.0
        memory, compute = self.memory_s(work), self.compute_s(work)
        both = max(memory, compute) if self.overlap == "max" else memory + compute
        return self.fixed_s + both


def roofline(
    model: ModelFacts,
    gpu: GPUFacts,
    gpus: int = 1,
    dtype: str | None = None,
    kv_dtype: str | None = None,
) -> Roofline:
    """Return the ideal roofline of a model on ``gpus`` GPUs, without communication cost.

    Windows and chunks are ignored: such layers attend to all tokens. States are not read.

    Raises:
        kvsim.sizing.fields.UnsupportedGeometryError: another kind of cache.
        ValueError: no GPU.
    """
    if gpus < 1:
        raise ValueError(f"{gpus} GPUs compute nothing")
    caches = model.caches(kv_dtype)
    weights = model.weight_bytes(dtype)
    experts = weights * model.expert_parameters / model.parameters
    return Roofline(
        weight_bytes=weights - experts,
        expert_bytes=experts,
        expert_share=model.expert_share,
        kv_token_bytes=token_bytes(caches),
        token_flops=2.0 * model.active_parameters,
        pair_flops=2.0 * model.query_heads * sum(_pair_elements(model, each) for each in caches),
        bandwidth=gpu.bandwidth * gpus,
        flops=gpu.flops * gpus,
    )


def _pair_elements(model: ModelFacts, cache: LayerCache) -> int:
    """Elements of a key and of a value that a query meets in a layer."""
    if cache.kind == "state" or not cache.shape[0]:  # an indexer has no heads
        return 0
    if cache.kind == "latent":  # the value is the part without rotary positions
        return 2 * cache.shape[1] - first_of(model.text, "qk_rope_head_dim")
    return cache.shape[1] + cache.shape[2]
