"""The typed events of a run: what arms emit, the runner writes down and reports read.

Events hold facts, message keys and numbers. Each carries two clocks: ``t_ns``, nanoseconds of
the monotonic clock, and, where it belongs to a step, the step's number. The module needs
pydantic and kvsim alone, so a worker in another environment can speak the same vocabulary.
"""

from __future__ import annotations

import time
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from experiment.messages import Message
from experiment.sampling import SamplingConfig

SCHEMA_VERSION = 2  # 2: a run may have been resumed
OLDEST_SCHEMA = 1  # read as it is: what came later is additions


class Stage(StrEnum):
    """Moments of an arm at which every memory channel is read while the arm stands still."""

    START = "start"  # process up, libraries imported, nothing loaded
    LOADED = "loaded"  # weights on the device
    CACHE_READY = "cache_ready"  # KV cache reserved, nothing computed
    REQUEST_DONE = "request_done"  # one request has ended
    LAST_STEP = "last_step"  # after the last step that ran, before anything is released
    RELEASED = "released"  # KV cache and weights given back


class Channel(StrEnum):
    """Where a memory figure comes from."""

    FORMULA = "formula"
    TENSORS = "tensors"
    TORCH_ALLOCATED = "torch.allocated"
    TORCH_RESERVED = "torch.reserved"
    TORCH_ALLOCATED_PEAK = "torch.allocated_peak"  # since the cache was there; before: ever
    TORCH_RESERVED_PEAK = "torch.reserved_peak"
    WEIGHTS = "weights"  # storages of parameters and buffers, each once
    ALLOCATOR_SLACK = "allocator.slack"  # freed and kept by torch's allocator or the C library
    NVML_PROCESS = "nvml.process"
    NVML_DEVICE = "nvml.device"
    CUDA_MEM_GET_INFO = "cuda.mem_get_info"
    RSS = "process.rss"
    USS = "process.uss"
    PSS = "process.pss"
    HIGH_WATER = "process.hwm"  # of the root alone, since HighWaterReset
    SYSTEM = "system.used"
    POISON = "poison"


class Scope(StrEnum):
    """What a memory figure is about."""

    TENSOR = "tensor"
    PROCESS = "process"
    TREE = "tree"
    DEVICE = "device"


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    t_ns: int = Field(default_factory=time.monotonic_ns)


class RunStarted(_Event):
    """First line of every log. ``wall_ns`` is the wall clock at ``t_ns``."""

    event: Literal["run_started"] = "run_started"
    schema_version: int = SCHEMA_VERSION
    version: str
    wall_ns: int
    utc_offset_s: int
    lang: str
    command: list[str]
    config: dict[str, Any]


class RunResumed(_Event):
    """The run had broken off and goes on in another process, perhaps after a restart.

    ``t_ns`` of what follows is on the monotonic clock at which ``wall_ns`` was the wall clock.
    ``missing`` are the arms that had not ended well: the index of their cell, None of an ordinary
    run, and their name. See :mod:`experiment.joined`.
    """

    event: Literal["run_resumed"] = "run_resumed"
    version: str
    wall_ns: int
    utc_offset_s: int
    command: list[str]
    missing: list[tuple[int | None, str]]


class EnvironmentProbed(_Event):
    """What the machine has; see :class:`experiment.environment.Environment`."""

    event: Literal["environment"] = "environment"
    environment: dict[str, Any]


class ModelPrepared(_Event):
    """The weights that every arm loads.

    ``source`` is hub, hub_cache, local or random; ``notes`` say what that means for the run.
    """

    event: Literal["model"] = "model"
    name: str
    source: Literal["hub", "hub_cache", "local", "random"]
    architecture: str
    parameters: int
    weights_sha256: str
    dtype: str
    device: str
    layers: int
    kv_heads: int
    head_dim: int
    element_bytes: int
    max_positions: int
    vocab_size: int
    eos_token_id: int | None
    random_seed: int | None = None
    random_init_range: float | None = None
    notes: list[Message] = []

    @property
    def slot_bytes(self) -> int:
        """Bytes of one token's K and V over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.element_bytes


class WorkloadRequest(BaseModel):
    """One request: its text, its token ids and how many tokens it may generate.

    ``sample_of`` is None for the first sample of a prompt; for further ones, which follow it
    with ids without a gap, the id of the first. ``arrival`` is in steps or seconds, as
    ``workload.clock`` says; a smaller ``priority`` is more urgent.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: int
    prompt: str
    token_ids: list[int]
    max_new_tokens: int
    sample_of: int | None = None
    arrival: float = 0
    priority: int = 0


class WorkloadReady(_Event):
    """The requests of the run, how they sample, and the KV bytes that each arm may reserve."""

    event: Literal["workload"] = "workload"
    requests: list[WorkloadRequest]
    max_length: int
    block_size: int
    budget_bytes: int
    sampling: SamplingConfig = SamplingConfig()

    def samples(self) -> list[list[WorkloadRequest]]:
        """The requests, those of the same prompt together."""
        groups: list[list[WorkloadRequest]] = []
        for request in self.requests:
            if request.sample_of is None:
                groups.append([])
            groups[-1].append(request)
        return groups


class CellStarted(_Event):
    """A cell of an experiment begins: what follows, up to the next one, is this cell's.

    ``values`` are what the cell varies, by the names that the experiment gives them;
    ``overrides`` the keys of the config that it changes. ``arms`` run in it.
    """

    event: Literal["cell"] = "cell"
    index: int
    of: int
    values: dict[str, int | float | str]
    overrides: dict[str, Any]
    arms: list[str]


class RepeatFinished(_Event):
    """An arm has run the workload once more: its steps and requests since the one before are those.

    Of an experiment's arms alone. The first one warms up; ``generate_s`` leaves out pauses.
    """

    event: Literal["repeat"] = "repeat"
    arm: str
    repeat: int
    warm_up: bool
    generate_s: float


class ArmStarted(_Event):
    """The arm's process runs.

    ``variables`` are those of its thread pools as the process found them, ``cores`` the numbers of
    those that it may run on; None in records of before they were taken, or where unknown.
    """

    event: Literal["arm_started"] = "arm_started"
    arm: str
    pid: int
    variables: dict[str, str] | None = None
    cores: list[int] | None = None


class StageEntered(_Event):
    """The arm stands still at ``stage``; readings with the same arm and stage follow."""

    event: Literal["stage"] = "stage"
    arm: str
    stage: Stage
    step: int | None = None
    request: int | None = None


class Reading(_Event):
    """One memory figure: bytes, or None and the reason. Never 0 for what is unknown.

    ``stage`` is None for samples taken while the arm runs.
    """

    event: Literal["reading"] = "reading"
    arm: str | None
    channel: Channel
    scope: Scope
    bytes: int | None
    reason: Message | None = None
    stage: Stage | None = None
    request: int | None = None
    device: str | None = None
    total_bytes: int | None = None


class Baseline(_Event):
    """What the device held before the arm, once it had settled: deltas count from here.

    ``bytes`` is the last reading of ``channel``, the whole device's: NVML's on CUDA, system
    memory on the CPU. ``settled`` is False when it went on moving for as long as was waited, or
    could not be read. ``foreign`` is how many processes on the GPU are not ours.
    """

    event: Literal["baseline"] = "baseline"
    arm: str
    channel: Channel
    bytes: int | None
    reason: Message | None = None
    settled: bool
    waited_s: float
    foreign: int | None
    foreign_reason: Message | None = None


class ForeignProcesses(_Event):
    """Processes on the GPU that are not ours, before the arm and after it. On CUDA only.

    ``reason`` says why a count is None.
    """

    event: Literal["foreign_processes"] = "foreign_processes"
    arm: str
    before: int | None
    after: int | None
    reason: Message | None = None


class Usage(_Event):
    """How busy processor and GPU were since the last event of this kind, some 250 ms.

    ``cpu_cores`` is the CPU time of the arm's process tree over wall time; 2.0 is two cores all
    the time. ``gpu_share`` is the part of the driver's own sampling period (up to 1 s) in which a
    kernel ran, ``gpu_memory_share`` that in which GPU memory was read or written, from 0 to 1,
    both of the whole device. ``reason`` says why the CPU's figure is None, ``gpu_reason`` why
    the GPU's are.
    """

    event: Literal["usage"] = "usage"
    arm: str
    cpu_cores: float | None
    gpu_share: float | None
    gpu_memory_share: float | None
    reason: Message | None = None
    gpu_reason: Message | None = None


class SamplerCost(_Event):
    """CPU seconds that watching the arm cost the runner, and how long it was watched."""

    event: Literal["sampler_cost"] = "sampler_cost"
    arm: str
    cpu_s: float
    wall_s: float


class HighWaterReset(_Event):
    """The high-water mark counts from now, not from the process's start; a reason: it does not."""

    event: Literal["high_water_reset"] = "high_water_reset"
    arm: str
    reason: Message | None = None


class PoolReserved(_Event):
    """The KV cache of an arm exists: its shape, and the bytes of its tensors.

    ``scale_bytes`` are those of a block beside its slots; ``kv_dtype`` is None where the cache
    holds the model's own precision.
    """

    event: Literal["pool"] = "pool"
    arm: str
    blocks: int
    block_size: int
    slot_bytes: int
    watermark_blocks: int = 0
    elastic: bool = False
    engine_blocks: int = 0
    tensor_bytes: int | None
    budget_bytes: int
    scale_bytes: int = 0
    kv_dtype: str | None = None

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, its scales included."""
        return self.block_size * self.slot_bytes + self.scale_bytes

    @property
    def bytes_per_slot(self) -> float:
        """A block's bytes shared evenly among its slots."""
        return self.block_bytes / self.block_size


class CacheQuantized(_Event):
    """A paged cache in another precision than the model's: bytes, and its error as measured.

    Bytes of a block and the blocks in the budget stand beside those in the model's precision
    (``plain_...``). The error was measured before the arm began, on ``tokens`` tokens that begin
    with those of request ``request``; see :class:`experiment.engine.kv_error.KVError`.
    """

    event: Literal["cache_quantized"] = "cache_quantized"
    arm: str
    kv_dtype: str
    block_size: int
    block_bytes: int
    plain_block_bytes: int
    blocks: int
    plain_blocks: int
    request: int
    tokens: int
    attention: float
    attention_worst: float
    logit_mean: float
    logit_largest: float
    logit_spread: float
    positions: int
    same_token: int


class Step(_Event):
    """A step was executed. ``plan`` is :func:`kvsim.step.plan_to_json`.

    ``started_ns`` is when it began (``t_ns``: when it had ended); ``written_slots`` is how many
    slots a count over the poisoned tensors found written, None where none was made.
    """

    event: Literal["step"] = "step"
    arm: str
    plan: dict[str, Any]
    started_ns: int
    written_slots: int | None = None


class Keyframe(_Event):
    """A whole picture after ``step``: block tables and slots written, to check a replay by."""

    event: Literal["keyframe"] = "keyframe"
    arm: str
    step: int
    tables: dict[int, list[int]]
    written: dict[int, int]


class TokenMapping(_Event):
    """Where one token of one request lies, read from the block table while the arm runs."""

    event: Literal["mapping"] = "mapping"
    arm: str
    step: int
    request: int
    position: int
    logical: int
    physical: int
    offset: int


class RequestFinished(_Event):
    """A request has ended. ``tokens`` are the generated ones, the prompt is not among them.

    Seconds count from the request's arrival and leave out the moments in which the arm stood
    still for a memory reading. ``wait_s``: until it first ran; ``first_token_s``: until its first
    token; ``latency_s``: until its last. ``arrival_step`` is the first step whose plan could know
    of it, ``first_token_step`` the one with its first token, where an arm of ours tells it.
    """

    event: Literal["request"] = "request"
    arm: str
    step: int | None = None
    request: int
    reason: str
    prompt_tokens: int
    tokens: list[int]
    text: str
    wait_s: float
    first_token_s: float | None
    latency_s: float
    arrival_step: int | None = None
    first_token_step: int | None = None


class PrefixCacheUsed(_Event):
    """What the prefix cache found over the whole arm, in tokens; see kvsim.prefix.PrefixStats."""

    event: Literal["prefix_cache"] = "prefix_cache"
    arm: str
    queried: int
    hit_cross: int
    hit_batch: int
    requeried: int
    hit_own: int
    hit_again: int


class LookupTimed(_Event):
    """Attention of one layer and one decoding step: contiguous, and through block tables.

    See :mod:`experiment.engine.lookup`; the experiment of that name asks for it.
    """

    event: Literal["lookup"] = "lookup"
    arm: str
    requests: int
    context: int
    block_size: int
    contiguous_s: float
    ordered_s: float
    scattered_s: float


class HolesSeen(_Event):
    """Requests that came and went in a contiguous arena of slots, ``slot_bytes`` each.

    See :class:`experiment.engine.arena.Holes`.
    """

    event: Literal["holes"] = "holes"
    arm: str
    allocator: Literal["first_fit", "buddy"]
    slots: int
    slot_bytes: int
    steps: int
    refused_steps: int
    first_step: int | None
    free: int | None
    largest: int | None
    needed: int | None
    running_peak: int


class KernelChosen(_Event):
    """The paged engine's attention kernel; ``reason`` says why a GPU does without Triton's."""

    event: Literal["kernel"] = "kernel"
    arm: str
    device: str
    asked: str
    kernel: str
    reason: Message | None = None


class ModelCompiled(_Event):
    """The seconds in which an arm compiled its model, before its clock began."""

    event: Literal["compiled"] = "compiled"
    arm: str
    seconds: float


class WeightsPacked(_Event):
    """Weights of the paged engine in oneDNN's order, see ``engine.packed_weights``.

    ``layers`` were packed in ``seconds``, ``kept`` linear layers stay as they were loaded, because
    another module needs their weight; activations of ``fused`` layers are computed with them.
    ``reason`` says why none is packed.
    """

    event: Literal["weights_packed"] = "weights_packed"
    arm: str
    layers: int
    kept: int
    fused: int
    seconds: float | None
    reason: Message | None = None


class DecodeGraphsReady(_Event):
    """CUDA graphs of decoding steps: batch sizes, or none and the ``reason``.

    ``static_bytes`` are those of the tensors that the graphs read and write beside the cache;
    ``reserved_bytes`` what torch's allocator took from the device for all of it, the graphs' own
    pool included (None where it keeps no count).
    """

    event: Literal["decode_graphs"] = "decode_graphs"
    arm: str
    device: str
    asked: str
    sizes: list[int]
    static_bytes: int | None
    reserved_bytes: int | None = None
    capture_s: float | None
    reason: Message | None = None


class DecodeGraphsUsed(_Event):
    """Decoding steps that were replayed, their rows, and rows of padding beside those."""

    event: Literal["decode_graphs_used"] = "decode_graphs_used"
    arm: str
    steps: int
    rows: int
    padding_rows: int


class EngineReported(_Event):
    """What an engine that is not ours says of itself, once it is ready to generate.

    ``tokens`` and ``max_concurrency`` are what it says it can hold, ``max_concurrency`` in
    requests of ``max_length``; ``rank_bytes`` are the bytes of the KV tensors of each rank, asked
    in its own process. ``arguments`` are all that it was started with. Seconds: ``load_s`` until
    the weights are there, ``compile_s`` profiling and compilation, ``cache_s`` reserving the
    cache, ``capture_s`` capturing graphs, ``first_request_s`` a request of one token.
    """

    event: Literal["engine"] = "engine"
    arm: str
    versions: dict[str, str]
    arguments: dict[str, Any]
    variables: dict[str, str]
    blocks: int
    block_size: int
    tokens: int | None
    max_concurrency: float | None
    max_length: int
    rank_bytes: list[int]
    load_s: float
    compile_s: float
    cache_s: float
    capture_s: float
    first_request_s: float


class EngineStep(_Event):
    """An engine's own statistics after a step, beside a count of its block tables.

    ``used_blocks`` follows from the usage that it reports, ``table_blocks`` counts the blocks in
    the tables of its unfinished requests at the same moment; the two are kept apart inside it.
    Preemptions and prefix-cache tokens are those of this step.
    """

    event: Literal["engine_step"] = "engine_step"
    arm: str
    step: int
    used_blocks: int
    table_blocks: int
    running: int
    waiting: int
    preempted: int
    prefix_queries: int
    prefix_hits: int


class TokenMargin(_Event):
    """How close the call was where an arm's tokens first differ from the reference arm's.

    ``logits`` are those of ``tokens`` (the reference's, the arm's) after the tokens that both
    have, by plain Transformers; ``margin`` is the largest logit there minus the second.
    """

    event: Literal["token_margin"] = "token_margin"
    arm: str
    reference: str
    request: int
    index: int
    tokens: tuple[int, int]
    logits: tuple[float, float]
    margin: float


class CacheMoved(_Event):
    """Bytes that a growing cache copied because every step reallocates it, over a request."""

    event: Literal["cache_moved"] = "cache_moved"
    arm: str
    request: int
    bytes: int


class MachineLimits(_Event):
    """What the machine does at best, with the threads of the run, and what a token takes of it.

    ``read_bytes_per_s`` reading memory far larger than any cache, ``flops_per_s`` multiplying
    large matrices in the model's precision, a multiplication and an addition counted as two.
    ``matrix_parameters`` are weights that every token is multiplied with, ``output_parameters``
    those of the output projection, ``attention_width`` query heads times head size times layers.
    """

    event: Literal["limits"] = "limits"
    threads: int
    read_bytes_per_s: float
    flops_per_s: float
    matrix_parameters: int
    output_parameters: int
    attention_width: int


class StepProfile(_Event):
    """Where the time of a decode step goes, by torch's profiler: medians over ``steps`` of them.

    Milliseconds of the thread that steps the engine: matrix products, attention with the writing
    of K and V, other tensor operations, and the rest, which is Python and scheduling. None where
    the device computes by itself and the thread does not wait. ``requests`` is how many ran.
    """

    event: Literal["profile"] = "profile"
    arm: str
    steps: int
    requests: int
    step_ms: float
    matrix_ms: float | None
    attention_ms: float | None
    other_ms: float | None
    rest_ms: float | None
    trace: str | None


class ArmFinished(_Event):
    """The arm ended well. Times are seconds; ``generate_s`` covers all requests of the workload."""

    event: Literal["arm_finished"] = "arm_finished"
    arm: str
    import_s: float
    load_s: float
    generate_s: float
    threads: int
    device_name: str


class ArmFailed(_Event):
    """A process did not end well; what it emitted before stands.

    ``arm`` is the arm, or ``environment`` or ``prepare`` for the stages before any arm.
    """

    event: Literal["arm_failed"] = "arm_failed"
    arm: str
    reason: Message
    exit_code: int | None = None


class ArmSkipped(_Event):
    """The arm was not started, and why."""

    event: Literal["arm_skipped"] = "arm_skipped"
    arm: str
    reason: Message


class Progress(_Event):
    """How far a long task is. For the console only; never written to the log."""

    event: Literal["progress"] = "progress"
    task: Message
    done: float
    total: float | None = None


class ModelDirectory(_Event):
    """Where the prepared weights are. Between processes only; never written to the log."""

    event: Literal["model_directory"] = "model_directory"
    path: str


class CellPrepared(_Event):
    """What a cell of an experiment is given. Between processes only; never written to the log.

    ``refused`` are arms that could not work within it, and why.
    """

    event: Literal["cell_prepared"] = "cell_prepared"
    index: int
    path: str
    model: ModelPrepared
    workload: WorkloadReady
    refused: dict[str, Message]


class Check(_Event):
    """Outcome of one check of the self-test. ``text`` says what was seen.

    ``passed`` is None where nothing could be judged, which is neither a pass nor a failure.
    """

    event: Literal["check"] = "check"
    check: str
    passed: bool | None
    text: Message


class Notice(_Event):
    """Something the person should know, such as a busy machine."""

    event: Literal["notice"] = "notice"
    text: Message


class RunFinished(_Event):
    """Last line: how the run ended."""

    event: Literal["run_finished"] = "run_finished"
    status: Literal["complete", "incomplete", "left", "interrupted", "failed"]


Event = Annotated[
    RunStarted
    | RunResumed
    | EnvironmentProbed
    | ModelPrepared
    | WorkloadReady
    | CellStarted
    | RepeatFinished
    | ArmStarted
    | StageEntered
    | Reading
    | Baseline
    | ForeignProcesses
    | Usage
    | SamplerCost
    | HighWaterReset
    | PoolReserved
    | CacheQuantized
    | Step
    | Keyframe
    | TokenMapping
    | RequestFinished
    | PrefixCacheUsed
    | KernelChosen
    | WeightsPacked
    | ModelCompiled
    | DecodeGraphsReady
    | DecodeGraphsUsed
    | LookupTimed
    | HolesSeen
    | EngineReported
    | EngineStep
    | TokenMargin
    | CacheMoved
    | MachineLimits
    | StepProfile
    | ArmFinished
    | ArmFailed
    | ArmSkipped
    | Progress
    | ModelDirectory
    | CellPrepared
    | Check
    | Notice
    | RunFinished,
    Field(discriminator="event"),
]

TRANSIENT = (Progress, ModelDirectory, CellPrepared)

_EVENT: TypeAdapter[Event] = TypeAdapter(Event)


def encode(event: BaseModel) -> str:
    """One line of JSON, without its newline."""
    return event.model_dump_json(exclude_none=False)


def decode(line: str | bytes) -> Event:
    """Parse one line of an event log.

    Raises:
        ValueError: not an event of this schema.
    """
    return _EVENT.validate_json(line)
