"""Capacity plan: a model, a GPU and request lengths → budget, concurrency, vLLM arguments.

    memory x utilisation                         memory of the server
      - weights - overhead      = KV budget      assumed values are named in the plan
                                  ÷ bytes of a block = blocks ─► concurrent requests, by policy

``slabs`` is the contiguous baseline with rows of the maximum length. ``max``, ``pow2`` and
``oracle`` are Orca's, whose buddy allocator rounds up.

:class:`EngineCapacity` is what an engine reports for a budget, e.g. vLLM's tokens and concurrency.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Protocol

from kvsim.contiguous.reservation import POLICIES, ReservationError, ReservationPolicy
from kvsim.core.request import final_tokens
from kvsim.latency.roofline import Latency, StepWork
from kvsim.planning.saturation import (
    NeverSaturatedError,
    PagedDemand,
    SaturatedPool,
    paged_demand,
    reserved_mean,
    saturate,
)
from kvsim.sizing.budget import KVBudget, PlanError, kv_budget, kv_copies
from kvsim.sizing.geometry import KVGeometry, max_concurrent_requests
from kvsim.sizing.gpus import GPUFacts
from kvsim.sizing.models import ModelFacts
from kvsim.sizing.vllm_capacity import GPU_BLOCK_MULTIPLE

__all__ = [
    "EngineCapacity",
    "KVBudget",
    "Plan",
    "PlanError",
    "PlanQuestion",
    "PolicyPlan",
    "full_rate",
    "kv_budget",
    "make_plan",
    "vllm_arguments",
]

BLOCK_SIZES = (8, 16, 32, 64, 128, 256)
# Most requests for saturating a buddy allocator; further lengths are left out.
_MAX_SATURATING = 4_000


class EngineCapacity(Protocol):
    """Capacity that an engine reports."""

    @property
    def tokens(self) -> int:
        """Size of its KV cache in tokens."""

    @property
    def max_concurrency(self) -> float:
        """Concurrent requests of the maximum length."""


# geometry, budget in bytes, block size, maximum length
Capacity = Callable[[KVGeometry, int, int, int], EngineCapacity]


@dataclass(frozen=True, slots=True)
class PolicyPlan:
    """Concurrent requests under one policy.

    Attributes:
        running: mean with a saturated queue; None with ``reason``.
        guaranteed: requests that can run to their ends concurrently without preemption (the
            lengths repeated in order).
        request_bytes: mean bytes that a running request occupies or makes unusable.
        live: mean share of the budget that holds tokens; None with ``reason``.
        pool: mean states of a buddy allocator's pool; None for ``paged`` and ``slabs``, or with
            ``reason``.
        reason: why a value is missing: ``never_saturated``: too few requests;
            ``never_fits``: a request is longer than any piece.
    """

    running: float | None
    guaranteed: int | None
    request_bytes: float
    live: float | None = None
    pool: SaturatedPool | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """A capacity plan.

    Attributes:
        too_long: requests left out because they exceed ``max_length``.
        left_out: requests not used for the contiguous policies, which had enough.
        block_sizes: blocks per request for each block size.
        full_at: requests per second that fill the pool; above it, requests wait or are
            preempted. None without a latency model.
        vllm_args: command line arguments; empty if vLLM has no such block size.
        printed: capacity that the engine will report; None if unknown, or if sliding windows are
            shorter than the maximum length.
    """

    model: str
    gpu: str
    gpus: int
    budget: KVBudget
    geometry: KVGeometry
    bytes_per_token: int
    block_size: int
    blocks: int
    max_length: int
    requests: int
    too_long: int
    left_out: int
    policies: Mapping[str, PolicyPlan]
    block_sizes: Sequence[PagedDemand]
    full_at: float | None
    vllm_args: tuple[str, ...]
    printed: EngineCapacity | None


@dataclass(frozen=True, slots=True)
class PlanQuestion:
    """Input of a plan.

    Attributes:
        lengths: (prompt, new) tokens of requests.
        max_length: None: that of the longest request, at most the model's positions.
        budget: None: from the GPU's memory with the defaults of :func:`kv_budget`.
        latency: latency model for ``full_at``.
        capacity: computes the capacity that the engine reports.
    """

    model: ModelFacts
    gpu: GPUFacts
    lengths: Sequence[tuple[int, int]]
    gpus: int = 1
    block_size: int = 16
    max_length: int | None = None
    budget: KVBudget | None = None
    kv_dtype: str | None = None
    latency: Latency | None = None
    capacity: Capacity | None = field(default=None, compare=False)


def make_plan(question: PlanQuestion) -> Plan:
    """Return the plan.

    Raises:
        PlanError: the plan is impossible.
        kvsim.sizing.geometry.UnsupportedGeometryError: another kind of cache.
    """
    q = question
    if not q.lengths:
        raise PlanError("no_lengths")
    budget = q.budget or kv_budget(q.model, q.gpu, q.gpus)
    geometry = q.model.geometry(q.kv_dtype)
    slot_bytes = geometry.bytes_per_token * kv_copies(geometry, q.gpus)
    max_length = _max_length(q)
    # The last token is never written, but engines reserve a position for it.
    lengths = [(prompt, new) for prompt, new in q.lengths if prompt + new <= max_length]
    if not lengths:
        raise PlanError("too_long", max_length=max_length)
    slots = budget.kv // slot_bytes
    blocks = _blocks(slots, q.block_size, max_length)
    paged = _blocked(lengths, slots, q.block_size, slot_bytes)
    policies = {"paged": paged, "slabs": _blocked(lengths, slots, max_length, slot_bytes)}
    for policy in POLICIES:
        policies[policy] = _reserved(policy, lengths, slots, max_length, slot_bytes)
    return Plan(
        model=q.model.name,
        gpu=q.gpu.name,
        gpus=q.gpus,
        budget=budget,
        geometry=geometry,
        bytes_per_token=slot_bytes,
        block_size=q.block_size,
        blocks=blocks,
        max_length=max_length,
        requests=len(lengths),
        too_long=len(q.lengths) - len(lengths),
        left_out=max(0, len(lengths) - _MAX_SATURATING),
        policies=policies,
        block_sizes=[paged_demand(lengths, size) for size in BLOCK_SIZES],
        full_at=full_rate(q.latency, lengths, paged.running) if q.latency else None,
        vllm_args=vllm_arguments(q, max_length, int(paged.running or 1)),
        printed=_printed(q, geometry, budget.kv, slot_bytes, max_length),
    )


def _blocks(slots: int, block_size: int, max_length: int) -> int:
    blocks = slots // block_size
    if blocks * block_size < max_length:
        raise PlanError("no_block", slots=blocks * block_size, max_length=max_length)
    return blocks


def _max_length(q: PlanQuestion) -> int:
    positions = q.model.max_positions
    if q.max_length is None:
        longest = max(prompt + new for prompt, new in q.lengths)
        return min(longest, positions or longest)
    if positions is not None and q.max_length > positions:
        raise PlanError("positions", max_length=q.max_length, positions=positions)
    return q.max_length


def _blocked(lengths: list[tuple[int, int]], slots: int, size: int, slot_bytes: int) -> PolicyPlan:
    """Plan blocks of ``size`` slots on demand; a slab is one block per request."""
    demand, blocks = paged_demand(lengths, size), slots // size
    running = blocks / demand.blocks
    fitting = max_concurrent_requests([final_tokens(*pair) for pair in lengths], blocks, size)
    bytes_each = demand.blocks * size * slot_bytes
    return PolicyPlan(running, fitting, bytes_each, running * demand.live / slots)


def _reserved(
    policy: ReservationPolicy,
    lengths: list[tuple[int, int]],
    slots: int,
    max_length: int,
    slot_bytes: int,
) -> PolicyPlan:
    requested = reserved_mean(policy, lengths, max_length) * slot_bytes
    served = lengths[:_MAX_SATURATING]
    # Repeat the lengths until there are enough requests.
    served = served * -(-_MAX_SATURATING // len(served))
    try:
        pool = saturate(policy, slots, max_length, served)
    except NeverSaturatedError:
        return PolicyPlan(None, None, requested, reason="never_saturated")
    except ReservationError:
        return PolicyPlan(None, None, requested, reason="never_fits")
    bytes_each = (slots - pool.free) * slot_bytes / pool.running
    return PolicyPlan(pool.running, None, bytes_each, pool.live / slots, pool)


def full_rate(
    latency: Latency,
    lengths: Sequence[tuple[int, int]],
    running: float | None,
    max_num_batched_tokens: int = 2048,
) -> float | None:
    """Return the requests per second that keep ``running`` of them decoding (Little's law).

    Every step decodes for all running requests, and some steps also prefill. The two kinds are
    averaged separately: memory-bound and compute-bound steps alternate, and one mean step would be
    faster than either. None without ``running``.
    """
    if not running or running < 1:
        return None
    count = len(lengths)
    prompt = sum(p for p, _ in lengths) / count
    output = sum(n for _, n in lengths) / count
    context = paged_demand(lengths, 1).live
    # Each request needs `output` steps, so running / output requests arrive per step.
    arrivals = running / output
    with_prompts = min(1.0, arrivals * ceil(prompt / max_num_batched_tokens))
    prompts = arrivals / with_prompts

    def step(prompts: float) -> float:
        pairs = prompts * prompt * (prompt + 1) / 2
        read = running * context
        work = StepWork(round(prompts * prompt), round(running), round(read), round(read + pairs))
        return latency.seconds(work)

    return arrivals / (with_prompts * step(prompts) + (1 - with_prompts) * step(0))


def vllm_arguments(q: PlanQuestion, max_length: int, running: int) -> tuple[str, ...]:
    """Return the arguments of ``vllm serve`` for the plan; empty for an unsupported block size."""
    if q.block_size % GPU_BLOCK_MULTIPLE:
        return ()
    args = ["--model", q.model.source, "--max-model-len", str(max_length)]
    args += ["--block-size", str(q.block_size), "--max-num-seqs", str(max(1, running))]
    if q.gpus > 1:
        args += ["--tensor-parallel-size", str(q.gpus)]
    if q.kv_dtype == "float8":
        args += ["--kv-cache-dtype", "fp8"]
    if q.budget is None or q.budget.utilisation is not None:
        utilisation = 0.9 if q.budget is None else q.budget.utilisation
        args += ["--gpu-memory-utilization", f"{utilisation:g}"]
    else:
        args += ["--kv-cache-memory-bytes", str(q.budget.kv // q.gpus)]
    return tuple(args)


def _printed(
    q: PlanQuestion, geometry: KVGeometry, kv: int, slot_bytes: int, max_length: int
) -> EngineCapacity | None:
    forgets = geometry.window is not None and geometry.window < max_length
    if q.capacity is None or forgets or q.block_size % GPU_BLOCK_MULTIPLE:
        return None
    # The budget for as many blocks without replicated KV heads.
    return q.capacity(
        geometry, kv * geometry.bytes_per_token // slot_bytes, q.block_size, max_length
    )
