"""A model on a GPU: layers, memory line by line, limits; and a SimConfig for each policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from experiment import __version__
from experiment.events.wall_clock import wall_clock
from experiment.simulate.latency_file import read_latency
from experiment.simulate.trace import Loaded
from experiment.text.errors import UserError, user_error
from experiment.workload.kvsim_errors import model_refused, translate_errors
from kvsim.core.limits import PreemptionKind
from kvsim.latency.roofline import Latency, Roofline, roofline
from kvsim.planning.preemption_cost import COPY_S, block_transfer_s
from kvsim.sim.config import PolicyName, SimConfig
from kvsim.sizing.budget import DEFAULTS, KVBudget, kv_budget
from kvsim.sizing.fields import UnsupportedGeometryError
from kvsim.sizing.gpus import GPUFacts
from kvsim.sizing.layers import largest_stage, pipeline_stages
from kvsim.sizing.layout import LayerCache, token_bytes
from kvsim.sizing.models import ModelFacts
from kvsim.sizing.overhead import ServerOptions, rank_weights
from kvsim.traces.formats import FORMATS

# Host memory, in pools, for the pool's content and for requests swapped out before.
_HOST_POOLS = 4


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits and policies of the scheduler, see :class:`kvsim.core.limits.SchedulerConfig`."""

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    long_prefill_token_threshold: int = 0
    watermark_blocks: int = 0
    preemption: PreemptionKind = "recompute"
    swap_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything but the trace and the policy.

    Attributes:
        caches: caches of the layers on one GPU.
        latency: latency model of a step. ``latency_source``: ``roofline`` (at assumed
            efficiencies) or ``file`` (calibrated).
        max_length_source: ``declared``; ``longest`` (the longest request); ``model`` (the model's
            positions, if fewer).
        dtype: dtype of the served weights; ``kv_dtype``: of keys and values.
        samples: samples per request; None: as in the trace.
    """

    model: ModelFacts
    gpu: GPUFacts
    gpus: int
    caches: tuple[LayerCache, ...]
    dtype: str
    kv_dtype: str
    budget: KVBudget
    block_size: int
    max_length: int
    max_length_source: str
    latency: Latency
    latency_source: str
    limits: Limits = Limits()
    samples: int | None = None
    beams: int = 1
    branching: float = 0.5
    seed: int = 0

    @property
    def slot_bytes(self) -> int:
        """Bytes of one token's K and V on all GPUs, with replicas; windows count all tokens."""
        return token_bytes(self.caches) * self.gpus

    def config(self, policy: PolicyName) -> SimConfig:
        """Config of one simulation.

        Raises:
            kvsim.sim.config.SimulationError: the policy cannot run with this setup.
        """
        limits = self.limits
        block = self.block_size * self.slot_bytes
        return SimConfig(
            policy=policy,
            budget_bytes=self.budget.kv,
            slot_bytes=self.slot_bytes,
            max_length=self.max_length,
            latency=self.latency,
            block_size=self.block_size,
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            long_prefill_token_threshold=limits.long_prefill_token_threshold,
            watermark_blocks=limits.watermark_blocks,
            preemption=limits.preemption,
            host_blocks=limits.swap_bytes // block,
            samples=self.samples,
            beams=self.beams,
            branching=self.branching,
            seed=self.seed,
            link_bandwidth=self.gpu.link_bandwidth * self.gpus,
            block_transfer_s=block_transfer_s(self.caches),
            labels={"model": self.model.name, "gpu": self.gpu.name, "gpus": str(self.gpus)},
        )

    def of_longest(self, longest: int) -> Setup:
        """Copy with the maximum length of the trace's longest request, prompt and output."""
        length = self.model.max_length_of(longest)
        source = "longest" if length == longest else "model"
        return replace(self, max_length=length, max_length_source=source)

    def with_budget(self, budget_bytes: int) -> Setup:
        """Copy with another KV budget."""
        return replace(self, budget=KVBudget(budget_bytes, self.budget.memory))

    def preempting(self, kind: PreemptionKind) -> Setup:
        """Copy with one kind of preemption and enough host memory for it."""
        room = _HOST_POOLS * self.budget.kv if kind == "swap" else 0
        return replace(self, limits=replace(self.limits, preemption=kind, swap_bytes=room))

    def to_json(self) -> dict[str, Any]:
        """Derivation of the number of blocks, as plain numbers."""
        model, gpu = self.model, self.gpu
        state = self.dtype if self.dtype in ("float16", "bfloat16", "float32") else None
        caches = model.caches(self.kv_dtype, block_size=self.block_size, dtype=state)
        whole = token_bytes(caches)
        return {
            "model": {
                "name": model.name,
                "source": model.hub,
                "parameters": None if model.weights else model.parameters,
                "weights": model.weights,
                "active_parameters": model.active_parameters,
                "dtype": self.dtype,
                "max_positions": model.max_positions,
            },
            "gpu": asdict(gpu),
            "gpus": self.gpus,
            "layers": layers_to_json(caches),
            "kv_dtype": self.kv_dtype,
            "bytes_per_token": whole,
            "kv_copies": round(self.slot_bytes / whole, 3) if whole else 1,
            "slot_bytes": self.slot_bytes,
            "budget": {**asdict(self.budget), "assumed": list(self.budget.assumed)},
            "slots": self.budget.kv // self.slot_bytes if whole else None,
            "block_size": self.block_size,
            "block_bytes": self.block_size * self.slot_bytes,
            "blocks": self.budget.kv // (self.block_size * self.slot_bytes) if whole else None,
            "max_length": self.max_length,
            "max_length_source": self.max_length_source,
            "limits": asdict(self.limits),
            "copy_s": COPY_S,
            "samples": self.samples,
            "beams": self.beams,
            "branching": self.branching if self.beams > 1 else None,
            "seed": self.seed,
            "latency": {
                "source": self.latency_source,
                "kind": type(self.latency).__name__,
                "efficiencies": asdict(self.latency.efficiencies)
                if isinstance(self.latency, Roofline)
                else None,
            },
        }


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory options: a KV budget, or the values from which it is derived.

    ``weights``: their bytes, or their quantization; ``gpus``: GPUs of one engine.
    """

    budget: int | None = None
    weights: int | str | None = None
    gpus: int = 1
    utilisation: float | None = None
    overhead: int | None = None
    server: ServerOptions = DEFAULTS
    dtype: str | None = None
    kv_dtype: str | None = None

    def kv_dtype_of(self, model: ModelFacts) -> str:
        """Dtype of K and V."""
        if self.kv_dtype is not None and self.kv_dtype.startswith("fp8"):
            return "float8"
        return self.dtype or model.kv_dtype

    def caches(self, model: ModelFacts, block_size: int = 16) -> tuple[LayerCache, ...]:
        """Caches of the layers on one GPU, of the largest pipeline stage.

        Raises:
            UserError: an unsupported kind of cache, or heads that cannot be split over the GPUs.
        """
        stages = self.server.pipeline_parallel
        try:
            kv_dtype = self.kv_dtype_of(model)
            caches = model.caches(kv_dtype, self.gpus // stages, block_size, dtype=self.dtype)
            return tuple(largest_stage(caches, pipeline_stages(model.config, stages)))
        except UnsupportedGeometryError as error:
            raise UserError(model_refused(model.name, error.reason)) from error

    def kv(self, model: ModelFacts, gpu: GPUFacts, max_length: int | None = None) -> KVBudget:
        """The KV budget, given or derived.

        Args:
            max_length: tokens of the longest request; None: the model's positions.

        Raises:
            UserError: weights and overhead leave no memory, or less than the given budget.
        """
        if self.budget is None:
            with translate_errors():
                return kv_budget(
                    model, gpu, self.gpus, self.utilisation, self.overhead, self.dtype,
                    options=self.server, max_length=max_length,
                )  # fmt: skip
        memory = gpu.memory_bytes * self.gpus
        tensor = self.gpus // self.server.pipeline_parallel
        weights = rank_weights(model, tensor, self.dtype, self.server) * self.gpus
        if weights >= memory:
            raise user_error("error.plan.no_room", usable=memory, weights=weights, overhead=0)
        if self.budget + weights > memory:
            raise user_error(
                "error.sim.budget_beyond", budget=self.budget, weights=weights, memory=memory,
                gpu=gpu.name, gpus=self.gpus,
            )  # fmt: skip
        return KVBudget(self.budget, memory)

    def roofline(self, model: ModelFacts, gpu: GPUFacts) -> Roofline:
        """The roofline of all engines together, at assumed efficiencies."""
        tensor = self.gpus // self.server.pipeline_parallel  # a token passes one stage at a time
        engines = self.server.data_parallel
        kv_dtype = self.kv_dtype_of(model)
        return roofline(model, gpu, tensor * engines, self.dtype, kv_dtype, engines=engines)


def length_limit(model: ModelFacts, max_length: int | None) -> int | None:
    """Maximum length of a request in tokens; None: unlimited.

    Raises:
        UserError: ``max_length`` exceeds the model's positions.
    """
    positions = model.max_positions
    if max_length is not None and positions is not None and max_length > positions:
        raise user_error("error.plan.positions", max_length=max_length, positions=positions)
    return max_length or positions


def make_setup(
    model: ModelFacts,
    gpu: GPUFacts,
    memory: Memory,
    *,
    max_length: int | None = None,
    block_size: int | None = None,
    latency: Path | None = None,
    **service: Any,
) -> Setup:
    """Make the setup of a simulation or plan.

    Args:
        max_length: tokens of the longest request; None: the model's positions.
        block_size: tokens of a block; None: vLLM's default for the model.
        latency: a file that ``calibrate`` wrote; None: the roofline of model and GPU.
        service: fields of :class:`Setup` about requests and the scheduler.

    Raises:
        UserError: an unsupported model or file, or weights and overhead leave no memory.
    """
    block_size = block_size or model.block_size
    return Setup(
        model=model,
        gpu=gpu,
        gpus=memory.gpus,
        caches=memory.caches(model, block_size),
        dtype=memory.dtype or model.serving_dtype,
        kv_dtype=memory.kv_dtype_of(model),
        budget=memory.kv(model, gpu, max_length),
        block_size=block_size,
        max_length=length_limit(model, max_length) or 0,
        max_length_source="declared",
        latency=read_latency(latency) if latency else memory.roofline(model, gpu),
        latency_source="file" if latency else "roofline",
        **service,
    )


def layers_to_json(caches: Sequence[LayerCache]) -> list[dict[str, Any]]:
    """Caches of a model's layers; equal ones are grouped."""
    counts = Counter(
        (cache.name, cache.token_bytes, cache.span, cache.shape, cache.states) for cache in caches
    )
    return [
        {"layers": count, "kind": kind, "token_bytes": size, "span": span, "shape": shape,
         "states": states}
        for (kind, size, span, shape, states), count in counts.items()
    ]  # fmt: skip


def head_of(
    kind: str, version: int, setup: Setup, stream: Loaded | None, **more: Any
) -> dict[str, Any]:
    """Head of the record of a simulation or plan: program, trace, setup."""
    source = FORMATS.get(stream.info.format) if stream else None
    return {
        "kind": kind,
        "schema_version": version,
        "version": __version__,
        **wall_clock(),
        **more,
        "trace": stream.info.to_json() if stream else None,
        "facts": asdict(stream.facts) if stream else None,
        "texts": bool(source and source.texts),  # lengths were counted
        "setup": setup.to_json(),
    }
