"""Typed events of a run: arms emit them, the runner records them, reports read them.

    run        run, cells, arms: start, end, failure, progress; the schema version
    workload   model, requests, turns of arms
    steps      block pool, steps, keyframes
    memory     stages, memory readings, background load
    engine     kernels, caches, graphs, statistics of an engine

Events hold facts, message keys and numbers. ``t_ns`` is nanoseconds of the monotonic clock. The
modules import only pydantic and kvsim, so that a worker in another environment can use them. All
events can be imported from here.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field, TypeAdapter

from experiment.events.base import share_fields_set
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
from experiment.events.run import (
    OLDEST_SCHEMA,
    SCHEMA_VERSION,
    ArmFailed,
    ArmFinished,
    ArmSkipped,
    ArmStarted,
    CellPrepared,
    CellStarted,
    Check,
    EnvironmentProbed,
    LayoutFound,
    MachineLimits,
    ModelDirectory,
    Notice,
    Progress,
    RunFinished,
    RunResumed,
    RunStarted,
    UtcOffset,
    WallNs,
)
from experiment.events.steps import Keyframe, PoolReserved, Step, TokenMapping
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
    | LayoutFound
    | Check
    | Notice
    | RunFinished,
    Field(discriminator="event"),
]

TRANSIENT = (Progress, ModelDirectory, CellPrepared, LayoutFound, TurnAwaited)

_EVENT: TypeAdapter[Event] = TypeAdapter(Event)


def encode(event: BaseModel) -> str:
    """Encode an event as one line of JSON, without its newline."""
    return event.model_dump_json(exclude_none=False)


def decode(line: str | bytes) -> Event:
    """Parse one line of an event log.

    Raises:
        ValueError: not an event of this schema.
    """
    return share_fields_set(_EVENT.validate_json(line))
