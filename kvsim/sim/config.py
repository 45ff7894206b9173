"""Configuration of a simulation: policy, pool, limits of a step, latency model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from kvsim.accounting.slots import PoolShape
from kvsim.base.coded_error import CodedError
from kvsim.core.limits import (
    Admission,
    PreemptionKind,
    SchedulerConfig,
    SchedulerVersion,
    SchedulingPolicy,
)
from kvsim.latency.roofline import Latency, LinearLatency, roofline
from kvsim.sizing.gpus import find_gpu
from kvsim.sizing.models import find_model

PolicyName = Literal[
    "static", "growing", "slabs", "max", "pow2", "oracle",
    "paged", "paged+first_chunk", "paged+prefix",
]  # fmt: skip
SIM_POLICIES: tuple[PolicyName, ...] = get_args(PolicyName)
CONTIGUOUS = tuple(policy for policy in SIM_POLICIES if not policy.startswith("paged"))
# Share of device memory that an engine uses; vLLM's default.
_MEMORY_SHARE = 0.9


class SimulationError(CodedError):
    """A simulation cannot start or continue.

    Attributes:
        code: the kind of error, e.g. ``pool_too_small``; a translation key.
        params: values for the message.
    """


# The least value of each option.
_LEAST = dict.fromkeys(
    ("slot_bytes", "max_length", "block_size", "beams", "max_num_seqs", "max_num_batched_tokens"), 1
) | dict.fromkeys(("watermark_blocks", "host_blocks", "long_prefill_token_threshold"), 0)
# Of a paged pool: a block that was ever used takes about 20 bytes here. Contiguous policies keep
# records of requests only, so their slots are bounded by what any GPU holds.
MAX_BLOCKS = 1 << 24
MAX_SLOTS = 1 << 36


@dataclass(frozen=True, slots=True)
class SimConfig:
    """Configuration of one simulation. Sizes are in slots (tokens) and bytes, times in seconds.

    Attributes:
        policy: see :data:`SIM_POLICIES`.
        budget_bytes: KV budget.
        slot_bytes: K and V of one token over all layers.
        max_length: slots of the longest request; longer ones are refused.
        latency: latency model of a step.
        block_size: slots in a block; paged policies only. A block of ``slabs`` is one slab.
        max_num_seqs ... host_blocks: see :class:`kvsim.core.limits.SchedulerConfig`. Contiguous
            policies use max_num_seqs, max_num_batched_tokens and long_prefill_token_threshold;
            ``static`` and ``growing`` prefill a batch in one step of any size.
        scheduling_policy: fcfs, or priority (paged policies only).
        samples: sequences from each prompt; None: as in the trace.
        beams: width of a beam search for each request.
        branching: with beams, the probability that a beam is replaced by a fork of another one.
        seed: seed of the branching.
        link_bandwidth: bytes per second between device and host, for swapping; None: at no cost.
        block_transfer_s: fixed seconds per transferred block.
        series_points: most points of the time series.
        labels: names stored with the results (model, GPU ...).

    Raises:
        SimulationError: ``pool_too_small``: the pool has no block or slot; ``pool_too_large``: it
            has too many to simulate; ``bad_option``.
    """

    policy: PolicyName
    budget_bytes: int
    slot_bytes: int
    max_length: int
    latency: Latency = field(default_factory=lambda: LinearLatency(fixed_s=1.0))
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_active_seqs: int | None = None
    max_num_batched_tokens: int = 2048
    max_num_scheduled_tokens: int | None = None
    long_prefill_token_threshold: int = 0
    long_prefill_token_threshold_adaptive: bool = False
    prefill_schedule_interval: int = 1
    admission: Admission = "full"
    watermark_blocks: int = 0
    scheduler: SchedulerVersion = "vllm-0.33"
    preemption: PreemptionKind = "recompute"
    host_blocks: int = 0
    scheduling_policy: SchedulingPolicy = "fcfs"
    samples: int | None = None
    beams: int = 1
    branching: float = 0.5
    seed: int = 0
    link_bandwidth: float | None = None
    block_transfer_s: float = 0.0
    series_points: int = 512
    labels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        several = self.beams > 1 or (self.samples or 1) > 1
        orders = get_args(SchedulingPolicy) if self.paged else ("fcfs",)
        is_good = {name: getattr(self, name) >= least for name, least in _LEAST.items()} | {
            "policy": self.policy in SIM_POLICIES and not (several and not self.paged),
            "samples": self.samples is None or self.samples >= 1,
            "branching": 0 <= self.branching <= 1,
            "scheduling_policy": self.scheduling_policy in orders,
            "admission": self.admission in get_args(Admission),
        }
        for name, good in is_good.items():
            if not good:
                raise SimulationError("bad_option", option=name, value=getattr(self, name))
        blocks, most = self.shape.blocks, MAX_BLOCKS
        if not self.paged and self.policy != "slabs":
            most = MAX_SLOTS
        if blocks < 1:
            raise SimulationError(
                "pool_too_small", budget=self.budget_bytes, needed=self.shape.block_bytes
            )
        if blocks > most:
            raise SimulationError(
                "pool_too_large", budget=self.budget_bytes, blocks=blocks, most=most
            )
        if self.paged and self.watermark_blocks >= blocks:
            raise SimulationError(
                "bad_option", option="watermark_blocks", value=self.watermark_blocks
            )

    @property
    def paged(self) -> bool:
        """Whether memory is allocated in blocks."""
        return self.policy not in CONTIGUOUS

    @property
    def shape(self) -> PoolShape:
        """Shape of the pool within the budget: blocks, slabs, or single slots."""
        size = 1
        if self.paged:
            size = self.block_size
        elif self.policy in ("static", "slabs"):
            size = self.max_length
        blocks = self.budget_bytes // (size * self.slot_bytes)
        watermark = self.watermark_blocks if self.paged else 0
        return PoolShape(blocks, size, self.slot_bytes, watermark)

    @property
    def scheduling(self) -> SchedulerConfig:
        """Configuration of the paged scheduler.

        Raises:
            ValueError: a limit out of range.
        """
        return SchedulerConfig(
            max_num_seqs=self.max_num_seqs,
            max_num_active_seqs=self.max_num_active_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_num_scheduled_tokens=self.max_num_scheduled_tokens,
            long_prefill_token_threshold=self.long_prefill_token_threshold,
            long_prefill_token_threshold_adaptive=self.long_prefill_token_threshold_adaptive,
            prefill_schedule_interval=self.prefill_schedule_interval,
            admission="first_chunk" if self.policy == "paged+first_chunk" else self.admission,
            scheduler=self.scheduler,
            watermark_blocks=self.shape.watermark_blocks,
            preemption=self.preemption,
            host_blocks=self.host_blocks,
            policy=self.scheduling_policy,
            prefix_caching=self.policy == "paged+prefix",
        )

    def to_json(self) -> dict[str, Any]:
        """Return the configuration as JSON data; the latency model by its class name."""
        data = asdict(self)
        data["labels"] = dict(self.labels)
        data["latency"] = {"kind": type(self.latency).__name__} | data["latency"]
        return data


def catalogue_config(
    policy: PolicyName,
    model: str,
    gpu: str,
    gpus: int = 1,
    budget_bytes: int | None = None,
    max_length: int | None = None,
    **more: Any,
) -> SimConfig:
    """Configure a simulation of a catalogue model on a catalogue GPU; ``more`` are other fields.

    The default budget is 0.9 x GPU memory - weights; activations are not subtracted.

    Raises:
        kvsim.sizing.models.UnknownModelError, kvsim.sizing.gpus.UnknownGPUError: no such name.
        kvsim.sizing.geometry.UnsupportedGeometryError: another kind of cache.
        SimulationError: no memory is left, or the maximum length is unknown.
    """
    facts, device = find_model(model), find_gpu(gpu)
    if budget_bytes is None:
        memory = int(device.memory_bytes * gpus * _MEMORY_SHARE)
        budget_bytes = memory - facts.weight_bytes()
    length = max_length or facts.max_positions
    if length is None:
        raise SimulationError("max_length_unknown", model=facts.name)
    return SimConfig(
        policy,
        max(0, budget_bytes),
        facts.token_bytes(gpus=gpus),
        length,
        latency=more.pop("latency", None) or roofline(facts, device, gpus),
        link_bandwidth=more.pop("link_bandwidth", device.link_bandwidth * gpus),
        labels={"model": facts.name, "gpu": device.name, "gpus": str(gpus)},
        **more,
    )
