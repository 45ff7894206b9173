"""Capacity plan: a model, a GPU and request lengths → budget, concurrency, vLLM arguments.

    memory x utilisation                         memory of the server
      - weights - overhead      = KV budget      assumed values are named in the plan
                                  ÷ bytes of a block = blocks ─► concurrent requests, by policy

``slabs`` is the contiguous baseline with rows of the maximum length. ``max``, ``pow2`` and
``oracle`` are Orca's, whose buddy allocator rounds up.

Where layers differ (windows, chunks, states), ``paged`` is vLLM's pool of groups
(:mod:`kvsim.sizing.layout`), ``slabs`` Transformers' ``StaticCache``, and Orca's reservations of
slots do not apply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from kvsim.contiguous.reservation import POLICIES, ReservationError, ReservationPolicy
from kvsim.core.request import final_tokens
from kvsim.latency.roofline import Latency, Roofline
from kvsim.planning.capacity import mean_blocks, prompt_room
from kvsim.planning.saturation import (
    NeverSaturatedError,
    PagedDemand,
    SaturatedPool,
    mean_over_steps,
    paged_demand,
    reserved_mean,
    saturate,
)
from kvsim.planning.speed import Speed, Traffic, speed
from kvsim.sizing.budget import DEFAULTS, KVBudget, PlanError, kv_budget
from kvsim.sizing.geometry import fitting_requests, max_concurrent_requests
from kvsim.sizing.gpus import GPUFacts
from kvsim.sizing.layers import largest_stage, pipeline_stages
from kvsim.sizing.layout import LayerCache, Layout, Service, lay_out, token_bytes
from kvsim.sizing.models import ModelFacts
from kvsim.sizing.overhead import ServerOptions
from kvsim.sizing.request_memory import live_bytes, request_memory
from kvsim.sizing.vllm_capacity import GPU_BLOCK_MULTIPLE, VllmCapacity

__all__ = [
    "KVBudget",
    "Plan",
    "PlanError",
    "PlanQuestion",
    "PolicyPlan",
    "kv_budget",
    "make_plan",
    "vllm_arguments",
]

BLOCK_SIZES = (8, 16, 32, 64, 128, 256)
_BUDGET_IN_BYTES_SINCE = (0, 11)  # the first versions of vLLM that all take a KV budget in bytes
# Most requests for saturating a buddy allocator; further lengths are left out.
_MAX_SATURATING = 4_000
# Of a request whose layers differ.
_MAX_TOKENS = 1 << 24


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
        caches: of the layers, on one rank.
        bytes_per_token: on all GPUs; of layers that keep every token, where layers differ.
        fixed_bytes: that a request keeps whatever its length, once it is longer than windows and
            chunks; on all GPUs.
        block_size: tokens of a block; groups may have larger ones.
        memory: bytes of a request against its length, on all GPUs, for each of
            :data:`kvsim.sizing.request_memory.WAYS`; empty where all layers are alike.
        block_sizes: blocks per request for each block size.
        vllm_args: command line arguments; empty if vLLM has no such block size.
        printed: capacity that vLLM will print; None for a block size that it does not have.
    """

    model: str
    gpu: str
    gpus: int
    budget: KVBudget
    caches: Sequence[LayerCache]
    layout: Layout
    bytes_per_token: int
    fixed_bytes: int
    block_size: int
    blocks: int
    max_length: int
    requests: int
    too_long: int
    left_out: int
    policies: Mapping[str, PolicyPlan]
    block_sizes: Sequence[PagedDemand]
    vllm_args: tuple[str, ...]
    printed: VllmCapacity | None
    memory: Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True)
class PlanQuestion:
    """Input of a plan.

    Attributes:
        lengths: (prompt, new) tokens of requests.
        max_length: None: that of the longest request, at most the model's positions.
        block_size: None: vLLM's default for the model.
        budget: None: from the GPU's memory with the defaults of :func:`kv_budget`.
        gpus: of one engine: tensor-parallel ranks of each pipeline stage.
        latency: of a step. ``shared_latency``: of all engines together, not of one.
        options: of the server.
    """

    model: ModelFacts
    gpu: GPUFacts
    lengths: Sequence[tuple[int, int]]
    gpus: int = 1
    block_size: int | None = None
    max_length: int | None = None
    budget: KVBudget | None = None
    kv_dtype: str | None = None
    dtype: str | None = None
    latency: Latency | None = None
    shared_latency: bool = True
    options: ServerOptions = DEFAULTS
    async_scheduling: bool = True
    prefix_caching: bool = True

    def longest(self) -> int:
        """Tokens of the longest request that is allowed.

        Raises:
            PlanError: ``positions``.
        """
        positions = self.model.max_positions
        if self.max_length is None:
            longest = max(prompt + new for prompt, new in self.lengths)
            return min(longest, positions or longest)
        if positions is not None and self.max_length > positions:
            raise PlanError("positions", max_length=self.max_length, positions=positions)
        return self.max_length

    def service(self, max_length: int) -> Service:
        """Limits that decide how many blocks vLLM sets aside for a request."""
        batched = self.options.batched_tokens(self.gpu, max_length)
        in_flight = self.options.pipeline_parallel + self.async_scheduling
        return Service(max_length, batched, in_flight)

    def speed(self, traffic: Traffic, running: float, max_length: int) -> Speed | None:
        """How fast all engines serve; None without a latency model or a whole request."""
        if self.latency is None or running < 1:
            return None
        tokens, engines = self.service(max_length).max_num_batched_tokens, self.engines
        stages, latency = self.options.pipeline_parallel, self.latency
        busy = min(max(1.0, running / stages), float(engines))
        if self.shared_latency:
            if busy < engines and isinstance(latency, Roofline):  # what few engines do alone
                names = ("kv_token_bytes", "token_flops", "pair_flops", "peer_token_s")
                more = {name: getattr(latency, name) * engines / busy for name in names}
                latency = replace(latency, **more)
            return speed(latency, traffic, running, tokens, stages, busy)
        one = speed(latency, traffic, running / busy, tokens, stages)
        if one is None:
            return None
        totals = {"rate": one.rate * busy, "tokens_per_s": one.tokens_per_s * busy}
        return replace(one, running=running, **totals)

    @property
    def engines(self) -> int:
        """Engines in data parallel."""
        return self.options.data_parallel

    def layers(self) -> tuple[list[LayerCache], Layout]:
        """What the layers of the largest pipeline stage keep on one GPU, and vLLM's layout.

        Raises:
            PlanError: ``stages``.
            kvsim.sizing.layout.LayoutError: vLLM has no groups for the model.
            kvsim.sizing.fields.UnsupportedGeometryError: as of :func:`make_plan`.
        """
        count = self.options.pipeline_parallel
        caches = self.model.caches(
            self.kv_dtype, self.gpus // count, self.block_size or self.model.block_size,
            dtype=self.dtype, prefix_caching=self.prefix_caching,
        )  # fmt: skip
        stages = pipeline_stages(self.model.config, count) if count > 1 else []
        if not all(stages):
            raise PlanError("stages", stages=count)
        return largest_stage(caches, stages), lay_out(caches, stages)


def make_plan(question: PlanQuestion) -> Plan:
    """Return the plan.

    Raises:
        PlanError: the plan is impossible.
        kvsim.sizing.layout.LayoutError: vLLM has no groups for the model.
        kvsim.sizing.fields.UnsupportedGeometryError: another kind of cache, or heads that cannot
            be divided among the GPUs.
    """
    q = replace(question, block_size=question.block_size or question.model.block_size)
    assert q.block_size is not None
    if not q.lengths:
        raise PlanError("no_lengths")
    max_length = q.longest()
    budget = q.budget or kv_budget(
        q.model, q.gpu, q.gpus, dtype=q.dtype, options=q.options, max_length=max_length
    )
    # The last token is never written, but engines reserve a position for it.
    lengths = [(prompt, new) for prompt, new in q.lengths if prompt + new <= max_length]
    if not lengths:
        raise PlanError("too_long", max_length=max_length)
    caches, layout = q.layers()
    printed = layout.capacity(budget.kv // q.gpus, q.service(max_length))
    plan = Plan(
        model=q.model.name,
        gpu=q.gpu.name,
        gpus=q.gpus,
        budget=budget,
        caches=caches,
        layout=layout,
        bytes_per_token=token_bytes(caches) * q.gpus,
        fixed_bytes=0,
        block_size=q.block_size,
        blocks=0,
        max_length=max_length,
        requests=len(lengths),
        too_long=len(q.lengths) - len(lengths),
        left_out=0,
        policies={},
        block_sizes=(),
        vllm_args=vllm_arguments(q, max_length, layout),
        printed=None if q.block_size % GPU_BLOCK_MULTIPLE else printed,
        memory={},
    )
    is_grouped = len(layout.groups) > 1 or _differ(caches, max_length)
    if is_grouped:
        return _in_groups(plan, lengths, q.service(max_length))
    return _in_slots(plan, lengths)


def _differ(caches: Sequence[LayerCache], max_length: int) -> bool:
    """Whether a request of the maximum length keeps other than every token in each layer."""
    return any(
        cache.kind == "state" or (cache.span and cache.span < max_length) for cache in caches
    )


def _in_slots(plan: Plan, lengths: list[tuple[int, int]]) -> Plan:
    """Complete a plan for layers that all keep every token: any slot can hold any token."""
    slot_bytes, max_length, size = plan.bytes_per_token, plan.max_length, plan.block_size
    slots = plan.budget.kv // slot_bytes
    blocks = slots // size
    if blocks * size < max_length:
        raise PlanError("no_block", slots=blocks * size, max_length=max_length)
    policies = {
        "paged": _blocked(lengths, slots, size, slot_bytes),
        "slabs": _blocked(lengths, slots, max_length, slot_bytes),
    }
    for policy in POLICIES:
        policies[policy] = _reserved(policy, lengths, slots, max_length, slot_bytes)
    demands = [paged_demand(lengths, size) for size in BLOCK_SIZES]
    left_out = max(0, len(lengths) - _MAX_SATURATING)
    return replace(plan, blocks=blocks, policies=policies, block_sizes=demands, left_out=left_out)


def _in_groups(plan: Plan, lengths: list[tuple[int, int]], service: Service) -> Plan:
    """Complete a plan for layers of different kinds: vLLM's groups, and ``StaticCache``.

    The last request to be admitted also needs room for its prompt, in chunks.
    """
    caches, layout, gpus = plan.caches, plan.layout, plan.gpus
    memory, max_length = plan.budget.kv // gpus, plan.max_length
    longest_request = max(map(sum, lengths))
    if longest_request > _MAX_TOKENS:  # a value for each of its lengths
        raise PlanError("positions", max_length=longest_request, positions=_MAX_TOKENS)
    tokens = np.arange(longest_request + 1)
    blocks = memory // layout.block_bytes
    decoding = service.decoding
    longest = layout.request_blocks(decoding)
    if blocks < longest:
        needed = longest * layout.block_bytes * gpus
        raise PlanError("no_memory", max_length=max_length, budget=plan.budget.kv, needed=needed)
    final = [layout.request_blocks(decoding, final_tokens(*pair)) for pair in lengths]
    mean = mean_blocks(layout, lengths)
    room = prompt_room(layout, service, lengths)
    live = mean_over_steps(lengths, live_bytes(caches, tokens))
    at = np.unique(np.append(2 ** np.arange(8, 31), max_length))
    at = at[at <= max_length]
    against = request_memory(caches, layout, at, plan.block_size)
    row = int(against["static"][-1])
    running, rows = max(0.0, blocks - fmean(room)) / mean, memory // row
    return replace(
        plan,
        blocks=blocks,
        policies={
            "paged": PolicyPlan(
                running,
                fitting_requests(final, max(0, blocks - max(room))),
                mean * layout.block_bytes * gpus,
                running * live / memory,
            ),
            "slabs": PolicyPlan(rows, rows, row * gpus, rows * live / memory),
        },
        fixed_bytes=layout.fixed_bytes(decoding) * gpus,
        memory={
            "tokens": at.tolist(),
            **{way: (values * gpus).tolist() for way, values in against.items()},
        },
    )


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


def vllm_arguments(q: PlanQuestion, max_length: int, layout: Layout) -> tuple[str, ...]:
    """Return the arguments of ``vllm serve`` for the plan; empty for an unsupported block size.

    A given KV budget is a number of bytes from vLLM 0.11 on, and of blocks before.
    """
    if q.block_size is None or q.block_size % GPU_BLOCK_MULTIPLE:
        return ()
    options, budget = q.options, q.budget
    utilisation = options.utilisation() if budget is None else budget.utilisation
    stages, engines = options.pipeline_parallel, options.data_parallel
    given_bytes = budget.kv // q.gpus if budget and utilisation is None else None
    in_blocks = options.version < _BUDGET_IN_BYTES_SINCE
    # True: a flag without a value; None or False: left out.
    words: dict[str, str | int | bool | None] = {
        "model": q.model.hub,
        "max-model-len": max_length,
        "block-size": q.block_size,
        "max-num-seqs": options.max_num_seqs,
        "tensor-parallel-size": q.gpus > stages and q.gpus // stages,
        "pipeline-parallel-size": stages > 1 and stages,
        "data-parallel-size": engines > 1 and engines,
        "enable-lora": options.max_loras > 0,
        "max-loras": options.max_loras or None,
        "max-lora-rank": options.max_lora_rank if options.max_loras else None,
        "enable-expert-parallel": options.expert_parallel,
        "kv-cache-dtype": "fp8" if q.kv_dtype == "float8" else None,
        "max-num-batched-tokens": options.max_num_batched_tokens,
        "enforce-eager": options.enforce_eager,
        "no-async-scheduling": not q.async_scheduling,
        "no-enable-prefix-caching": not q.prefix_caching,
        "language-model-only": options.language_model_only,
        "gpu-memory-utilization": None if utilisation is None else f"{utilisation:g}",
        "kv-cache-memory-bytes": None if in_blocks else given_bytes,
        "num-gpu-blocks-override": given_bytes // layout.block_bytes
        if given_bytes and in_blocks
        else None,
    }
    given = {f"--{name}": value for name, value in words.items() if value not in (None, False)}
    return tuple(
        word
        for flag, value in given.items()
        for word in ((flag,) if value is True else (flag, str(value)))
    )
