"""The typed events of a run: what arms emit, the runner writes down and reports read.

Events hold facts, message keys and numbers. Each carries two clocks: ``t_ns``, nanoseconds of
the monotonic clock, and, where it belongs to a step, the step's number. The modules need
pydantic and kvsim alone, so a worker in another environment can speak the same vocabulary. Here
are the events of a run, its arms and steps; ``events_workload``, ``events_memory``,
``events_engine`` and ``events_turns`` hold the others, and all can be imported from here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, PlainSerializer, PlainValidator, TypeAdapter

from experiment.events.base import EventBase, Int, Name, share_fields_set
from experiment.events.engine import (
    CacheMoved,
    CacheQuantized,
    DecodeGraphsReady,
    DecodeGraphsUsed,
    EngineReported,
    EngineStep,
    HolesSeen,
    KernelChosen,
    LookupTimed,
    ModelCompiled,
    PrefixCacheUsed,
    ProfileRun,
    SecondPartRun,
    StepProfile,
    WeightsPacked,
)
from experiment.events.memory import (
    Baseline,
    Channel,
    ForeignProcesses,
    HighWaterReset,
    Reading,
    SamplerCost,
    Scope,
    Stage,
    StageEntered,
    Usage,
)
from experiment.events.workload import (
    ModelPrepared,
    RepeatFinished,
    RequestFinished,
    TokenMargin,
    TurnAwaited,
    TurnStarted,
    WorkloadReady,
    WorkloadRequest,
)
from experiment.text.messages import Message
from kvsim.core.step import StepPlan, plan_from_json, plan_to_json

SCHEMA_VERSION = 3  # 2: a run may have been resumed; 3: arms of several cells take turns
OLDEST_SCHEMA = 1  # read as it is: what came later is additions


# Times that a calendar knows: no 300 years from 1970, and less than a day from UTC.
WallNs = Annotated[int, Field(gt=-(2**63), lt=2**63)]
UtcOffset = Annotated[int, Field(gt=-86_400, lt=86_400)]


class RunStarted(EventBase):
    """First line of every log. ``wall_ns`` is the wall clock at ``t_ns``."""

    event: Literal["run_started"] = "run_started"
    schema_version: Int = SCHEMA_VERSION
    version: str
    wall_ns: WallNs
    utc_offset_s: UtcOffset
    lang: str
    command: list[str]
    config: dict[str, Any]


class RunResumed(EventBase):
    """The run had broken off and goes on in another process, perhaps after a restart.

    ``t_ns`` of what follows is on the monotonic clock at which ``wall_ns`` was the wall clock.
    ``missing`` are the arms that had not ended well: the index of their cell, None of an ordinary
    run, and their name. See :mod:`experiment.record.merged`.
    """

    event: Literal["run_resumed"] = "run_resumed"
    version: str
    wall_ns: WallNs
    utc_offset_s: UtcOffset
    command: list[str]
    missing: list[tuple[Int | None, Name]]


class EnvironmentProbed(EventBase):
    """What the machine has; see :class:`experiment.machine.environment.Environment`."""

    event: Literal["environment"] = "environment"
    environment: dict[str, Any]


class CellStarted(EventBase):
    """A cell of an experiment begins: what follows, up to the next one, is this cell's.

    ``values`` are what the cell varies, by the names that the experiment gives them;
    ``overrides`` the keys of the config that it changes. ``arms`` run in it.
    """

    event: Literal["cell"] = "cell"
    index: Int
    of: Int
    values: dict[Name, Int | float | str]
    overrides: dict[Name, Any]
    arms: list[Name]


class ArmStarted(EventBase):
    """The arm's process runs.

    ``variables`` are those of its thread pools and of a GPU's memory, as the process found them,
    ``cores`` the numbers of those that it may run on; None in records of before they were taken,
    or where unknown.
    """

    event: Literal["arm_started"] = "arm_started"
    arm: Name
    pid: Int
    variables: dict[str, str] | None = None
    cores: list[Int] | None = None


class PoolReserved(EventBase):
    """The KV cache of an arm exists: its shape, and the bytes of its tensors.

    ``scale_bytes`` are those of a block beside its slots; ``kv_dtype`` is None where the cache
    holds the model's own precision.
    """

    event: Literal["pool"] = "pool"
    arm: Name
    blocks: Int
    block_size: Int
    slot_bytes: Int
    watermark_blocks: Int = 0
    elastic: bool = False
    engine_blocks: Int = 0
    tensor_bytes: Int | None
    budget_bytes: Int
    scale_bytes: Int = 0
    kv_dtype: Name | None = None

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, its scales included."""
        return self.block_size * self.slot_bytes + self.scale_bytes

    @property
    def bytes_per_slot(self) -> float:
        """A block's bytes shared evenly among its slots."""
        return self.block_bytes / self.block_size


def _plan(value: Any) -> StepPlan:
    return value if isinstance(value, StepPlan) else plan_from_json(value)


# In the log an object of rows; what a later version adds stands behind a row or under a new name.
LoggedPlan = Annotated[
    StepPlan, PlainValidator(_plan), PlainSerializer(plan_to_json, return_type=dict[str, Any])
]


class Step(EventBase):
    """A step was executed: ``plan``, written as :func:`kvsim.core.step.plan_to_json` does.

    ``t_ns`` is when it had ended, and ``started_ns`` lies as long before as it took on the arm's
    clock: that stands still while somebody measures, so it really began so much earlier as the arm
    was measured in the middle of it. Deciding what is computed and ending requests are part of it.
    ``written_slots`` is how many slots a count over the poisoned tensors found written, None where
    none was made.
    """

    event: Literal["step"] = "step"
    arm: Name
    plan: LoggedPlan
    started_ns: Int
    written_slots: Int | None = None


class Keyframe(EventBase):
    """A whole picture after ``step``: block tables and slots written, to check a replay by."""

    event: Literal["keyframe"] = "keyframe"
    arm: Name
    step: Int
    tables: dict[Int, list[Int]]
    written: dict[Int, Int]


class TokenMapping(EventBase):
    """Where one token of one request lies, read from the block table while the arm runs."""

    event: Literal["mapping"] = "mapping"
    arm: Name
    step: Int
    request: Int
    position: Int
    logical: Int
    physical: Int
    offset: Int


class MachineLimits(EventBase):
    """What the machine does at best, with the threads of the run, and what a token takes of it.

    ``read_bytes_per_s`` reading memory far larger than any cache, ``flops_per_s`` multiplying
    large matrices in the model's precision, a multiplication and an addition counted as two.
    ``matrix_parameters`` are weights that every token is multiplied with, ``output_parameters``
    those of the output projection, ``attention_width`` query heads times head size times layers.
    ``sampled_parameters`` are those of the ``matrix_parameters`` that only a token which gives the
    next one needs: all of the last layer but what makes keys and values. 0 in older records.
    """

    event: Literal["limits"] = "limits"
    threads: Int
    read_bytes_per_s: float
    flops_per_s: float
    matrix_parameters: Int
    output_parameters: Int
    attention_width: Int
    sampled_parameters: Int = 0


class ArmFinished(EventBase):
    """The arm ended well. Times are seconds; ``generate_s`` covers all requests of the workload."""

    event: Literal["arm_finished"] = "arm_finished"
    arm: Name
    import_s: float
    load_s: float
    generate_s: float
    threads: Int
    device_name: str


class ArmFailed(EventBase):
    """A process did not end well; what it emitted before stands.

    ``arm`` is the arm, or ``environment`` or ``prepare`` for the stages before any arm.
    """

    event: Literal["arm_failed"] = "arm_failed"
    arm: Name
    reason: Message
    exit_code: Int | None = None


class ArmSkipped(EventBase):
    """The arm was not started, and why."""

    event: Literal["arm_skipped"] = "arm_skipped"
    arm: Name
    reason: Message


class Progress(EventBase):
    """How far a long task is. For the console only; never written to the log."""

    event: Literal["progress"] = "progress"
    task: Message
    done: float
    total: float | None = None


class ModelDirectory(EventBase):
    """Where the prepared weights are. Between processes only; never written to the log."""

    event: Literal["model_directory"] = "model_directory"
    path: str


class CellPrepared(EventBase):
    """What a cell of an experiment is given. Between processes only; never written to the log.

    ``refused`` are arms that could not work within it, and why.
    """

    event: Literal["cell_prepared"] = "cell_prepared"
    index: Int
    path: str
    model: ModelPrepared
    workload: WorkloadReady
    refused: dict[Name, Message]


class Check(EventBase):
    """Outcome of one check of the self-test. ``text`` says what was seen.

    ``passed`` is None where nothing could be judged, which is neither a pass nor a failure.
    """

    event: Literal["check"] = "check"
    check: str
    passed: bool | None
    text: Message


class Notice(EventBase):
    """Something the person should know, such as a busy machine.

    ``arm`` is the one that it is about; None: it is about the run.
    """

    event: Literal["notice"] = "notice"
    text: Message
    arm: Name | None = None


class RunFinished(EventBase):
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
    | TurnAwaited
    | TurnStarted
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
    | ProfileRun
    | ModelCompiled
    | DecodeGraphsReady
    | DecodeGraphsUsed
    | LookupTimed
    | HolesSeen
    | EngineReported
    | EngineStep
    | TokenMargin
    | CacheMoved
    | SecondPartRun
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

TRANSIENT = (Progress, ModelDirectory, CellPrepared, TurnAwaited)

_EVENT: TypeAdapter[Event] = TypeAdapter(Event)


def encode(event: BaseModel) -> str:
    """One line of JSON, without its newline."""
    return event.model_dump_json(exclude_none=False)


def decode(line: str | bytes) -> Event:
    """Parse one line of an event log.

    Raises:
        ValueError: not an event of this schema.
    """
    return share_fields_set(_EVENT.validate_json(line))
