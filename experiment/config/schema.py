"""The configuration of a run: every key with its default and its limits.

:mod:`experiment.config.reading` reads it from TOML, ``--set`` and flags.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    JsonValue,
    PositiveInt,
    ValidationError,
)

from experiment.config.arms import ARM_GROUPS, ARMS
from experiment.events.sampling import ConfigSection, SamplingConfig, Value
from experiment.text.errors import UserError, shown, unknown, user_error
from experiment.text.messages import message
from experiment.text.sizes import parse_bytes, size_error
from kvsim.core.limits import (
    Admission,
    PreemptionKind,
    SchedulerConfig,
    SchedulerVersion,
    SchedulingPolicy,
)

# Below it, Transformers' logits divided by it are infinite in half precision.
MIN_TEMPERATURE = 0.01


def _budget(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError(value)
    if isinstance(value, str) and value != "auto":
        return parse_bytes(value)
    return value


# Keys whose values are sizes.
SIZES = ("cache.budget", "engine.swap_space")
Size = Annotated[int, BeforeValidator(_budget)]


class ModelConfig(ConfigSection):
    """Weights and dtype."""

    name: str = Field("gpt2", min_length=1)
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    offline: bool = False
    init_range: float = Field(0.08, ge=0.05, le=0.1)


class WorkloadConfig(ConfigSection):
    """Prompts, and the number of tokens generated for each.

    ``prompts`` are texts; if empty, the four of the walkthrough. ``prompts_file`` is JSONL with
    ``{"prompt": ...}`` in each line. ``lengths`` replaces both: (prompt tokens, new tokens) of each
    request, with token ids drawn from the run's seed. ``arrivals`` are the ordered arrival times of
    the prompts: steps of a virtual clock, which makes counts reproducible, or seconds of wall time.
    ``priorities`` has a number for each prompt; smaller is more urgent with ``engine.policy =
    "priority"``.
    """

    prompts: tuple[str, ...] = ()
    prompts_file: str | None = None
    lengths: tuple[tuple[PositiveInt, PositiveInt], ...] = ()
    max_new_tokens: int = Field(50, ge=1, le=1_000_000)
    ignore_eos: bool = True
    arrivals: tuple[Annotated[float, Field(ge=0, le=1e9)], ...] = ()
    clock: Literal["steps", "wall"] = "steps"
    priorities: tuple[int, ...] = ()

    @property
    def timed(self) -> bool:
        """Whether requests arrive by wall time, so that counts are not reproducible."""
        return bool(self.arrivals) and self.clock == "wall"


class CacheConfig(ConfigSection):
    """The KV cache. ``budget`` is in bytes; auto: one slab of ``max_length`` slots per request."""

    max_length: int = Field(512, ge=2, le=10_000_000)
    block_size: int = Field(16, ge=1, le=1_000_000)
    budget: Annotated[Literal["auto"] | Annotated[int, Field(ge=1)], BeforeValidator(_budget)] = (
        "auto"
    )
    watermark_blocks: int = Field(0, ge=0)
    kv_dtype: Literal["auto", "int8", "fp8"] = "auto"  # paged engine; auto: the model's dtype

    def watermark_for(self, block_size: int, max_length: int) -> int:
        """Number of blocks that admission holds back.

        0 if one block holds any request: running requests then never allocate another.
        """
        return 0 if block_size >= max_length else self.watermark_blocks


class EngineConfig(ConfigSection):
    """Limits of a step of the paged engine, and its attention kernel.

    Limits are those of :class:`kvsim.core.limits.SchedulerConfig`.

    ``kernel``: auto is numba on the CPU in float32, triton on supported GPUs, otherwise torch;
    reference is slow, for tests. ``cuda_graphs``, for decode steps: auto uses them where possible;
    compiled adds torch.compile, which takes about 15 s before the first request.
    ``packed_weights``: on the CPU in float32, convert the weights to oneDNN's packed layout.
    """

    max_num_seqs: int = Field(256, ge=1)
    max_num_active_seqs: int | None = Field(None, ge=1)
    max_num_batched_tokens: int = Field(2048, ge=1)
    max_num_scheduled_tokens: int | None = Field(None, ge=1)
    long_prefill_token_threshold: int = Field(0, ge=0)
    long_prefill_token_threshold_adaptive: bool = False
    prefill_schedule_interval: int = Field(1, ge=1)
    admission: Admission = "full"
    scheduler: SchedulerVersion = "vllm-0.33"
    policy: SchedulingPolicy = "fcfs"
    preemption: PreemptionKind = "recompute"
    swap_space: Size = Field(0, ge=0)
    prefix_caching: bool = False
    kernel: Literal["auto", "torch", "numba", "triton", "reference"] = "auto"
    cuda_graphs: Literal["auto", "on", "compiled", "off"] = "auto"
    packed_weights: bool = True

    def scheduling(self) -> dict[str, Any]:
        """The fields that :class:`kvsim.core.limits.SchedulerConfig` has too, by name."""
        names = SchedulerConfig.__dataclass_fields__.keys() & type(self).model_fields.keys()
        return {name: getattr(self, name) for name in sorted(names)}


# Arguments of vLLM's engine that name no module, class, plugin, file, loader or address, and that
# the comparison does not fix.
VLLM_ARGUMENTS = frozenset(
    re.findall(
        r"\S+",
        """
    all2all_backend attention_backend cpu_offload_gb cudagraph_capture_sizes disable_cascade_attn
    disable_custom_all_reduce disable_hybrid_kv_cache_manager disable_sliding_window
    enable_chunked_prefill enable_dbo enable_eplb enable_expert_parallel enable_flashinfer_autotune
    gpu_memory_utilization kv_cache_dtype kv_sharing_fast_prefill linear_backend
    max_cudagraph_capture_size max_logprobs max_parallel_loading_workers moe_backend
    num_gpu_blocks_override numa_bind optimization_level performance_mode prefix_caching_hash_algo
    stream_interval use_tqdm_on_load
    """,
    )
)


class VllmConfig(ConfigSection):
    """Arguments of vLLM's engine other than those that the comparison fixes.

    ``args``: plain values of :data:`VLLM_ARGUMENTS`, passed to vLLM: ``[vllm.args]`` in TOML.
    ``threads_bind``: CPU cores of vLLM's threads: nobind, auto, or a list such as ``0-3``.
    """

    tensor_parallel_size: int = Field(1, ge=1, le=4096)
    pipeline_parallel_size: int = Field(1, ge=1, le=4096)
    quantization: str | None = None
    enforce_eager: bool = False
    threads_bind: str = Field("nobind", min_length=1)
    args: dict[str, JsonValue] = Field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """Number of workers that share the model."""
        return self.tensor_parallel_size * self.pipeline_parallel_size


class RunSection(ConfigSection):
    """Where and how the arms run."""

    arms: tuple[str, ...] = ("contiguous", "slabs", "paged")
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int | None = Field(None, ge=1, le=4096)
    seed: int = Field(0, ge=0, lt=2**32)
    sample_interval_ms: int = Field(20, ge=1, le=10_000)
    witness: bool = True  # count written slots in the tensors after each step
    arm_timeout_s: float = Field(1800, gt=0)
    profile: bool = False  # paged engine: run torch's profiler over some decode steps
    cuda_history: bool = False  # CUDA: record torch's allocator history and keep a snapshot


# Relative difference below which times of two processes are not distinguished. On a shared machine
# speed varies within seconds, and in quick size an arm is timed for less than one. Derivation:
# docs/experiments.md, "How far a time can be trusted".
MARGINS: Mapping[str, float] = {"full": 0.2, "quick": 0.5}
# The same for interleaved arms with enough rounds, which see the same speed.
TURNS_MARGINS: Mapping[str, float] = {"full": 0.1, "quick": 0.2}
ROUNDS_ENOUGH = 5


def percent_of(margin: float) -> float:
    """Margin in percent, without rounding errors of floats."""
    return round(margin * 100, 6)


def is_within_margin(one: float, other: float, margin: float) -> bool:
    """Whether two values differ by at most ``margin``, relative to the smaller one."""
    return max(one, other) <= min(one, other) * (1 + margin)


class ExperimentConfig(ConfigSection):
    """An experiment: the same requests under several settings; see docs/experiments.md.

    Attributes:
        name: one of :mod:`experiment.experiments`; None: an ordinary run.
        size: quick applies the keys of ``quick``.
        repeats: measured repeats, after one warm-up.
        margin: relative difference below which times of two processes are not distinguished; None:
            :data:`MARGINS` of the size.
        turns_margin: the same for interleaved arms with :data:`ROUNDS_ENOUGH` rounds or more; None:
            :data:`TURNS_MARGINS`, or ``margin`` if that is smaller.
        turns: on a CPU, interleave arms and cells repeat by repeat, as far as memory allows.
        values: the varied values, one per cell; the experiment defines their meaning.
        options: further numbers for the experiment.
    """

    name: str | None = None
    size: Literal["full", "quick"] = "full"
    repeats: int = Field(5, ge=1, le=1000)
    margin: float | None = Field(None, ge=0, le=10)
    turns_margin: float | None = Field(None, ge=0, le=10)
    turns: bool = True
    values: tuple[Value, ...] = ()
    options: dict[str, JsonValue] = Field(default_factory=dict)
    quick: dict[str, JsonValue] = Field(default_factory=dict)

    @property
    def measured_repeats(self) -> int:
        """Measured repeats; 0 in an ordinary run, whose only repeat counts."""
        return 0 if self.name is None else self.repeats

    @property
    def process_margin(self) -> float:
        """Margin between two processes, as a share."""
        return MARGINS[self.size] if self.margin is None else self.margin

    @property
    def interleaved_margin(self) -> float:
        """Margin between two interleaved processes, as a share."""
        known = self.turns_margin
        return min(TURNS_MARGINS[self.size], self.process_margin) if known is None else known

    @property
    def total_repeats(self) -> int:
        """Number of repeats, warm-up included."""
        return self.measured_repeats + 1


class Config(ConfigSection):
    """A whole run."""

    model: ModelConfig = ModelConfig()
    workload: WorkloadConfig = WorkloadConfig()
    sampling: SamplingConfig = SamplingConfig()
    cache: CacheConfig = CacheConfig()
    engine: EngineConfig = EngineConfig()
    vllm: VllmConfig = VllmConfig()
    run: RunSection = RunSection()
    experiment: ExperimentConfig = ExperimentConfig()

    @property
    def arm_names(self) -> tuple[str, ...]:
        """Arms in the order in which they run; groups such as ``contiguous`` expanded."""
        return expand_arms(self.run.arms)


def expand_arms(names: Iterable[str]) -> tuple[str, ...]:
    """Expand groups of arms, without duplicates.

    Raises:
        UserError: an unknown arm, or none.
    """
    arms: list[str] = []
    for name in names:
        if name not in ARM_GROUPS and name not in ARMS:
            raise unknown("arm", name, sorted({*ARM_GROUPS, *ARMS}))
        arms += [arm for arm in ARM_GROUPS.get(name, (name,)) if arm not in arms]
    if not arms:
        raise user_error("error.no_arms")
    return tuple(arms)


def group_of(arm: str) -> str:
    """The group that a single arm belongs to."""
    return ARMS[arm].group or arm


def make_config(data: Mapping[str, Any]) -> Config:
    """Build a config from nested tables.

    Raises:
        UserError: an unknown key or an invalid value.
    """
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        raise _explain(error) from error
    expand_arms(config.run.arms)
    _check_sampling(config)
    _check_engine(config.engine)
    for key, other in (
        ("sampling.min_new_tokens", "workload.max_new_tokens"),
        ("engine.max_num_active_seqs", "engine.max_num_seqs"),
        ("engine.max_num_scheduled_tokens", "engine.max_num_batched_tokens"),
    ):
        value, limit = attrgetter(key, other)(config)
        if value is not None and value > limit:
            params = {"config_key": key, "value": value, "other": other, "limit": limit}
            raise user_error("error.above_other", **params)
    for name, value in config.vllm.args.items():
        if name not in VLLM_ARGUMENTS or not _is_plain(value):
            raise user_error("error.vllm_args", argument=shown(name), value=shown(value))
    return config


def _is_plain(value: JsonValue) -> bool:
    """Whether it is a number, a boolean, a single word, or a list of integers."""
    if isinstance(value, list):
        return all(isinstance(each, int) for each in value)
    plain = isinstance(value, int | float)
    return plain or (isinstance(value, str) and re.fullmatch("[A-Za-z0-9_-]+", value) is not None)


def merge_tables(data: dict[str, Any], other: Mapping[str, Any]) -> None:
    """Merge nested tables into ``data``; the new values win."""
    for key, value in other.items():
        present = data.get(key)
        if isinstance(value, Mapping) and isinstance(present, dict):
            merge_tables(present, value)
        else:
            data[key] = value


def config_keys() -> tuple[str, ...]:
    """All dotted keys of a config."""
    return tuple(
        f"{section}.{name}"
        for section, field in Config.model_fields.items()
        for name in field.default.__class__.model_fields
    )


def unknown_key(key: str) -> UserError:
    """Build the error for an unknown key, with the nearest known key."""
    return unknown("key", key, config_keys())


def _check_sampling(config: Config) -> None:
    """Check combinations of sampling settings.

    Raises:
        UserError: contradicting settings.
    """
    sampling = config.sampling
    if 0 < sampling.temperature < MIN_TEMPERATURE:
        raise user_error("error.low_temperature", value=sampling.temperature, limit=MIN_TEMPERATURE)
    alone = sampling.greedy and sampling.n == 1 and not sampling.min_new_tokens
    if sampling.beam_width > 1 and not alone:
        others = "sampling.n, temperature, min_new_tokens"
        raise user_error("error.either_flag", flag="sampling.beam_width", other=others)


def _check_engine(engine: EngineConfig) -> None:
    """Check combinations of limits.

    Raises:
        UserError: contradicting limits.
    """
    if engine.prefill_schedule_interval > 1 and engine.scheduler == "vllm-0.32":
        params = {"flag": "engine.prefill_schedule_interval", "other": "engine.scheduler=vllm-0.33"}
        raise user_error("error.needs_flag", **params)
    if engine.long_prefill_token_threshold_adaptive and not engine.long_prefill_token_threshold:
        other = "engine.long_prefill_token_threshold"
        raise user_error("error.needs_flag", flag=f"{other}_adaptive", other=other)


# What is expected, by the first word of pydantic's error type.
_KINDS = {
    "int": "error.kind.whole",
    "float": "error.kind.number",
    "finite": "error.kind.number",
    "bool": "error.kind.yes_no",
    "truth": "error.kind.value",
    "string": "error.kind.text",
    "tuple": "error.kind.list",
    "model": "error.kind.section",
    "dict": "error.kind.section",
}


def _explain(error: ValidationError) -> UserError:
    first = error.errors()[0]
    # Deeper parts are pydantic's names for the branches of a union.
    key = ".".join(str(part) for part in first["loc"][:2])
    limits, value = first.get("ctx", {}), shown(first["input"])
    if first["type"] == "extra_forbidden":
        return unknown_key(key)
    for name in ("ge", "gt", "le", "lt"):
        if name in limits:
            named = {"config_key": key, "value": value, "limit": limits[name]}
            return user_error(f"error.limit_{name}", **named)
    if key in SIZES:
        return size_error(key, first["input"])
    if first["type"] == "literal_error":
        choices = ", ".join(re.findall(r"'([^']+)'", limits["expected"]))
        return user_error("error.not_a_choice", config_key=key, value=value, choices=choices)
    if first["type"] == "string_too_short":
        return user_error("error.empty", config_key=key)
    kind = _KINDS.get(first["type"].partition("_")[0])
    if kind is None:
        return user_error("error.bad_value", config_key=key, value=value)
    return user_error("error.not_a_kind", config_key=key, value=value, kind=message(kind))
