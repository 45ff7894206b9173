"""What a run is: model, workload, budget, arms; every key with its default, and what is refused.

:mod:`experiment.config.reading` reads one from TOML, ``--set`` and flags.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    JsonValue,
    PositiveInt,
    ValidationError,
)

from experiment.config.arms import ARM_GROUPS, ARMS
from experiment.events.sampling import SamplingConfig, Section, Value
from experiment.text.errors import UserError, shown, unknown, user_error
from experiment.text.messages import message
from experiment.text.sizes import parse_bytes, size_error

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


class ModelConfig(Section):
    """Which weights, in which precision."""

    name: str = Field("gpt2", min_length=1)
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    offline: bool = False
    init_range: float = Field(0.08, ge=0.05, le=0.1)


class WorkloadConfig(Section):
    """Prompts and how much is generated for each.

    ``prompts`` are texts; empty means the four of the walkthrough. ``prompts_file`` is JSONL
    with ``{"prompt": ...}`` in each line. ``lengths``, where given, stands instead of both:
    (prompt tokens, new tokens) of each request, its token ids drawn from the run's seed.

    ``arrivals``, where given, is when each prompt arrives, in order: steps of a virtual clock, so
    that counts are the same everywhere, or seconds of the wall clock. ``priorities`` are numbers,
    one for each prompt; a smaller one is more urgent under ``engine.policy = "priority"``.
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
        """Whether requests come by the wall clock, so that no count is the same twice."""
        return bool(self.arrivals) and self.clock == "wall"


class CacheConfig(Section):
    """The KV cache. ``budget`` is bytes, or auto: one slab of the maximum length per request."""

    max_length: int = Field(512, ge=2, le=10_000_000)
    block_size: int = Field(16, ge=1, le=1_000_000)
    budget: Annotated[Literal["auto"] | Annotated[int, Field(ge=1)], BeforeValidator(_budget)] = (
        "auto"
    )
    watermark_blocks: int = Field(0, ge=0)
    kv_dtype: Literal["auto", "int8", "fp8"] = "auto"  # of the paged engine; auto: the model's

    def watermark_for(self, block_size: int, max_length: int) -> int:
        """Blocks of that size that admission holds back.

        None where one holds a request however long: nobody who runs will ask for another.
        """
        return 0 if block_size >= max_length else self.watermark_blocks


class EngineConfig(Section):
    """Limits of a step of the paged engine, and the kernel that computes its attention.

    ``kernel``: auto is numba on the CPU in float32, triton on GPUs that have it, else torch;
    reference is slow, for tests. ``cuda_graphs``: of decoding steps; auto where they can be;
    compiled: by torch as well, which takes a quarter of a minute before the first request.
    ``packed_weights``: on the CPU in float32, bring the weights into oneDNN's order.
    """

    max_num_seqs: int = Field(256, ge=1)
    max_num_batched_tokens: int = Field(2048, ge=1)
    long_prefill_token_threshold: int = Field(0, ge=0)
    policy: Literal["fcfs", "priority"] = "fcfs"
    preemption: Literal["recompute", "swap"] = "recompute"
    swap_space: Size = Field(0, ge=0)
    prefix_caching: bool = False
    kernel: Literal["auto", "torch", "numba", "triton", "reference"] = "auto"
    cuda_graphs: Literal["auto", "on", "compiled", "off"] = "auto"
    packed_weights: bool = True


# Arguments of vLLM's engine that name no module, class, plugin, file, loader or address, and that
# the comparison leaves free.
VLLM_ARGUMENTS = frozenset(
    re.findall(
        r"\S+",
        """
    all2all_backend attention_backend cpu_offload_gb cudagraph_capture_sizes disable_cascade_attn
    disable_custom_all_reduce disable_hybrid_kv_cache_manager disable_sliding_window
    enable_chunked_prefill enable_dbo enable_eplb enable_expert_parallel enable_flashinfer_autotune
    gpu_memory_utilization kv_cache_dtype kv_sharing_fast_prefill linear_backend
    long_prefill_token_threshold max_cudagraph_capture_size max_logprobs max_num_scheduled_tokens
    max_parallel_loading_workers moe_backend num_gpu_blocks_override numa_bind optimization_level
    performance_mode prefill_schedule_interval prefix_caching_hash_algo scheduler_reserve_full_isl
    stream_interval use_tqdm_on_load
    """,
    )
)


class VllmConfig(Section):
    """Arguments of vLLM's engine beside those that the comparison fixes.

    ``args``: plain values of :data:`VLLM_ARGUMENTS`, handed to vLLM: ``[vllm.args]`` in TOML.
    ``threads_bind`` is which cores its threads keep to on a CPU: nobind, auto, or such as ``0-3``.
    """

    tensor_parallel_size: int = Field(1, ge=1, le=4096)
    pipeline_parallel_size: int = Field(1, ge=1, le=4096)
    quantization: str | None = None
    enforce_eager: bool = False
    threads_bind: str = Field("nobind", min_length=1)
    args: dict[str, JsonValue] = Field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """Workers that the model is spread over."""
        return self.tensor_parallel_size * self.pipeline_parallel_size


class RunSection(Section):
    """Where and how the arms run."""

    arms: tuple[str, ...] = ("contiguous", "slabs", "paged")
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int | None = Field(None, ge=1, le=4096)
    seed: int = Field(0, ge=0, lt=2**32)
    sample_interval_ms: int = Field(20, ge=1, le=10_000)
    witness: bool = True  # count written slots from the tensors after each step
    arm_timeout_s: float = Field(1800, gt=0)
    profile: bool = False  # of the paged engine: some decode steps under torch's profiler
    cuda_history: bool = False  # on CUDA: record torch's allocator history and keep a snapshot


# By how much two processes of one arm may differ though the repeats of each lie close together: a
# shared machine's pace goes up and down within seconds, and in quick size an arm is timed for less
# than one. Where they are from: docs/experiments.md, "How far a time can be trusted".
MARGINS: Mapping[str, float] = {"full": 0.2, "quick": 0.5}
# The same of two that took turns, in rounds enough: the pace is one for both then.
TURNS_MARGINS: Mapping[str, float] = {"full": 0.1, "quick": 0.2}
ROUNDS_ENOUGH = 5


def percent_of(margin: float) -> float:
    """A margin for a text, without the last digits of a product of floats."""
    return round(margin * 100, 6)


def closer(one: float, other: float, margin: float) -> bool:
    """Whether the larger one is beyond the smaller one by no more than a margin of it."""
    return max(one, other) <= min(one, other) * (1 + margin)


class ExperimentConfig(Section):
    """An experiment: the same requests under several settings; see docs/experiments.md.

    Attributes:
        name: one of :mod:`experiment.experiments`; None: an ordinary run.
        size: quick puts the keys of ``quick`` over those of the file.
        repeats: measured ones, behind one that warms up.
        margin: as a share: times of two processes that lie closer together than this are not told
            apart, however close their repeats are; None: as :data:`MARGINS` says for the size.
        turns_margin: the same where the two took turns, in :data:`ROUNDS_ENOUGH` rounds or more;
            None: as :data:`TURNS_MARGINS` says, or ``margin`` where that is less.
        turns: on a CPU arms and cells take turns, repeat by repeat, as far as memory reaches.
        values: what varies, a cell each; what they mean is the experiment's to say.
        options: further numbers that the experiment asks for.
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
    def measured(self) -> int:
        """Repeats behind the one that warms up; 0 of an ordinary run, whose only one counts."""
        return 0 if self.name is None else self.repeats

    @property
    def apart(self) -> float:
        """The margin between two processes, as a share."""
        return MARGINS[self.size] if self.margin is None else self.margin

    @property
    def apart_in_turns(self) -> float:
        """The same where they took turns."""
        known = self.turns_margin
        return min(TURNS_MARGINS[self.size], self.apart) if known is None else known

    @property
    def times(self) -> int:
        """How often an arm's process runs the workload, the warm-up among them."""
        return self.measured + 1


class Config(Section):
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
        """Single arms in the order in which they run; groups such as ``contiguous`` unfolded."""
        return expand_arms(self.run.arms)


def expand_arms(names: Iterable[str]) -> tuple[str, ...]:
    """Unfold groups of arms, without repeats.

    Raises:
        UserError: no such arm.
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
    """A config of nested tables.

    Raises:
        UserError: an unknown key or a value that does not fit.
    """
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        raise _explain(error) from error
    expand_arms(config.run.arms)
    _check_sampling(config)
    for name, value in config.vllm.args.items():
        if name not in VLLM_ARGUMENTS or not _is_plain(value):
            raise user_error("error.vllm_args", argument=shown(name), value=shown(value))
    return config


def _is_plain(value: JsonValue) -> bool:
    """Whether it is a number, a truth value, a single word, or a list of numbers."""
    if isinstance(value, list):
        return all(isinstance(each, int) for each in value)
    plain = isinstance(value, int | float)
    return plain or (isinstance(value, str) and re.fullmatch("[A-Za-z0-9_-]+", value) is not None)


def put_over(data: dict[str, Any], other: Mapping[str, Any]) -> None:
    """Put the values of nested tables over those that are there."""
    for key, value in other.items():
        mine = data.get(key)
        if isinstance(value, Mapping) and isinstance(mine, dict):
            put_over(mine, value)
        else:
            data[key] = value


def config_keys() -> tuple[str, ...]:
    """Every dotted key that a config may set."""
    return tuple(
        f"{section}.{name}"
        for section, field in Config.model_fields.items()
        for name in field.default.__class__.model_fields
    )


def unknown_key(key: str) -> UserError:
    """That there is no such key, with the nearest one that there is."""
    return unknown("key", key, config_keys())


def _check_sampling(config: Config) -> None:
    """What no single field can say.

    Raises:
        UserError: settings that contradict each other.
    """
    sampling, most = config.sampling, config.workload.max_new_tokens
    if 0 < sampling.temperature < MIN_TEMPERATURE:
        raise user_error("error.low_temperature", value=sampling.temperature, limit=MIN_TEMPERATURE)
    alone = sampling.greedy and sampling.n == 1 and not sampling.min_new_tokens
    if sampling.beam_width > 1 and not alone:
        raise user_error("error.beams_alone", width=sampling.beam_width)
    if sampling.min_new_tokens > most:
        raise user_error("error.min_above_max", value=sampling.min_new_tokens, limit=most)


# What was expected where pydantic's error types begin so; their rest says how it was missed.
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
    """The first problem, as one line in the user's language."""
    first = error.errors()[0]
    # Below the second part stand pydantic's own names for the branches of a union.
    key = ".".join(str(part) for part in first["loc"][:2])
    if first["type"] == "extra_forbidden":
        return unknown_key(key)
    if first["type"] == "literal_error" and "expected" in first.get("ctx", {}):
        choices = re.sub(r"'|\bor\b", "", first["ctx"]["expected"]).replace("  ", " ")
        choices = ", ".join(part.strip(" ,") for part in choices.split() if part.strip(" ,"))
        if key != "cache.budget":
            return user_error(
                "error.not_a_choice", config_key=key, value=shown(first["input"]), choices=choices
            )
    limits = first.get("ctx", {})
    for name in ("ge", "gt", "le", "lt"):
        if name in limits:
            return user_error(
                f"error.limit_{name}",
                config_key=key,
                value=shown(first["input"]),
                limit=limits[name],
            )
    if key in SIZES:
        return size_error(key, first["input"])
    if first["type"] == "string_too_short":
        return user_error("error.empty", config_key=key)
    kind = _KINDS.get(first["type"].partition("_")[0])
    if kind is None:
        return user_error("error.bad_value", config_key=key, value=shown(first["input"]))
    return user_error(
        "error.not_a_kind", config_key=key, value=shown(first["input"]), kind=message(kind)
    )
