"""Events of a run, grouped by arm."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, TypeVar

from experiment.config.arms import by_ladder
from experiment.events import (
    ArmFailed,
    ArmFinished,
    ArmSkipped,
    ArmStarted,
    Baseline,
    CacheMoved,
    CacheQuantized,
    Channel,
    EngineReported,
    EngineStep,
    ForeignProcesses,
    HighWaterReset,
    HolesSeen,
    Keyframe,
    LookupTimed,
    PoolReserved,
    PrefixCacheUsed,
    ProfileRun,
    Reading,
    RequestFinished,
    SamplerCost,
    SecondPartRun,
    Stage,
    Step,
    TokenMapping,
    Usage,
    WeightsPacked,
)
from experiment.record.log import Record

T = TypeVar("T")
# Stages of a run that are not arms.
PREPARATION = ("environment", "prepare", "margins", "limits")
# Maxima since the cache was reserved.
_PEAKS = (Channel.HIGH_WATER, Channel.TORCH_ALLOCATED_PEAK, Channel.TORCH_RESERVED_PEAK)


@dataclass(frozen=True, slots=True)
class ArmEvents:
    """The events of one arm."""

    arm: str
    pool: PoolReserved | None
    steps: list[Step]
    keyframes: dict[int, Keyframe]
    requests: list[RequestFinished]
    readings: list[Reading]
    finished: ArmFinished | None
    failed: ArmFailed | None
    skipped: ArmSkipped | None
    mapping: TokenMapping | None
    moved: list[CacheMoved]
    prefix: PrefixCacheUsed | None
    quantized: CacheQuantized | None
    usages: list[Usage]
    baseline: Baseline | None
    foreign: ForeignProcesses | None
    sampler_cost: SamplerCost | None
    reset: HighWaterReset | None
    engine: EngineReported | None
    engine_steps: list[EngineStep]
    lookup: LookupTimed | None
    holes: list[HolesSeen]
    started: ArmStarted | None
    packed: WeightsPacked | None
    profile_run: ProfileRun | None
    second_part: SecondPartRun | None
    is_drawn: bool = False
    # Cache of derived values.
    memo: dict[str, object] = field(default_factory=dict, compare=False, repr=False)


def arms_of(record: Record) -> list[ArmEvents]:
    """Arms of a run in display order: by the ladder."""
    return by_ladder(split_by_arm(record), lambda events: events.arm)


def split_by_arm(record: Record) -> list[ArmEvents]:
    """Group the log by arm, once; the stages before the arms are excluded."""
    known = record.memo.get("arms")
    if isinstance(known, list):
        return list(known)
    grouped: dict[str, list[object]] = defaultdict(list)
    for event in record.events:
        arm = getattr(event, "arm", None)
        if arm is not None and arm not in PREPARATION:
            grouped[arm].append(event)
    made = [_arm_events(arm, events, record.is_drawn) for arm, events in grouped.items()]
    record.memo["arms"] = made
    return list(made)


def _arm_events(arm: str, events: list[object], is_drawn: bool) -> ArmEvents:
    by_type: defaultdict[type, list[Any]] = defaultdict(list)
    for event in events:
        by_type[type(event)].append(event)

    def of(kind: type[T]) -> list[T]:
        return by_type[kind]

    def last(kind: type[T]) -> T | None:
        return next(reversed(of(kind)), None)

    return ArmEvents(
        arm=arm,
        pool=last(PoolReserved),
        steps=of(Step),
        keyframes={frame.step: frame for frame in of(Keyframe)},
        requests=of(RequestFinished),
        readings=_without(last(SecondPartRun), of(Reading)),
        finished=last(ArmFinished),
        failed=last(ArmFailed),
        skipped=last(ArmSkipped),
        mapping=last(TokenMapping),
        moved=of(CacheMoved),
        prefix=last(PrefixCacheUsed),
        quantized=last(CacheQuantized),
        usages=of(Usage),
        baseline=last(Baseline),
        foreign=last(ForeignProcesses),
        sampler_cost=last(SamplerCost),
        reset=last(HighWaterReset),
        engine=last(EngineReported),
        engine_steps=of(EngineStep),
        lookup=last(LookupTimed),
        holes=of(HolesSeen),
        started=last(ArmStarted),
        packed=last(WeightsPacked),
        profile_run=last(ProfileRun),
        second_part=last(SecondPartRun),
        is_drawn=is_drawn,
    )


def _without(part: SecondPartRun | None, readings: list[Reading]) -> list[Reading]:
    """Exclude samples and peaks from the second part on."""
    if part is None:
        return readings
    return [
        reading
        for reading in readings
        if reading.t_ns < part.started_ns
        or (reading.stage is Stage.RELEASED and reading.channel not in _PEAKS)
    ]
