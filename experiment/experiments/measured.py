"""Split the record of an experiment into cells and repeats.

    events    run_started … │ cell 0 │ model workload │ arm … steps │repeat 0│ steps │repeat 1│ …
                            │ cell 1 │ …
    a view    events before the first cell, the cell's own, and those of one repeat

A view has the form of an ordinary run's record, for all code that reads those.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from experiment.analysis.arm_results import arm_results
from experiment.analysis.results import ArmResult
from experiment.config.schema import Config, make_config
from experiment.events import (
    CacheQuantized,
    CellStarted,
    EngineStep,
    Event,
    HolesSeen,
    LookupTimed,
    ModelPrepared,
    PoolReserved,
    PrefixCacheUsed,
    RepeatFinished,
    RequestFinished,
    RunFinished,
    WorkloadReady,
)
from experiment.experiments.base import cell_config
from experiment.experiments.cells import Cell, CellEvents
from experiment.record.log import Record, cell_at
from experiment.replay.arm_events import ArmEvents, split_by_arm
from experiment.replay.step_rows import StepRow
from experiment.replay.timeline import timeline
from experiment.text.messages import Message

T = TypeVar("T")


def cells_of(record: Record) -> list[CellEvents]:
    """The cells of an experiment, in order; empty for an ordinary run."""
    before: list[Event] = []
    cells: dict[int, tuple[CellStarted, list[Event]]] = {}
    ends: list[Event] = []
    here: int | None = None
    for event in record.events:
        here = cell_at(event, here)
        if isinstance(event, CellStarted):
            cells.setdefault(event.index, (event, []))  # repeated after events of other cells
        elif isinstance(event, RunFinished):
            ends.append(event)
        elif here in cells:
            cells[here][1].append(event)
        else:
            before.append(event)
    if not cells:
        return []
    config = make_config(record.started.config)
    return [
        CellEvents(started, _config(config, started), tuple(before), (*events, *ends), record)
        for started, events in cells.values()
    ]


def _config(config: Config, started: CellStarted) -> Config:
    return cell_config(config, Cell(started.values, started.overrides, tuple(started.arms)))


@dataclass(frozen=True, slots=True)
class Measured:
    """Data of one repeat of an arm in a cell, from which its figures are derived.

    ``rows`` are the steps that computed something; ``moved`` the bytes that a growing cache copied,
    by request; ``fits`` the max concurrent requests of this shape that the budget holds.
    """

    arm: str
    config: Config
    model: ModelPrepared
    workload: WorkloadReady
    pool: PoolReserved
    rows: list[StepRow]
    requests: list[RequestFinished]
    moved: Mapping[int, int]
    prefix: PrefixCacheUsed | None
    quantized: CacheQuantized | None
    generate_s: float
    fits: int | None = None
    lookup: LookupTimed | None = None
    holes: Mapping[str, HolesSeen] = field(default_factory=dict)
    engine_steps: Sequence[EngineStep] = ()
    problem: Message | None = None


@dataclass(frozen=True, slots=True)
class ArmMeasured:
    """An arm in a cell: its outcome, and its repeats without the warm-up.

    ``result`` is that of the warm-up: only there slots are counted in the tensors, and plans are
    compared with the simulator's, block for block.
    """

    result: ArmResult
    warm_up: Measured | None
    repeats: list[Measured]


def measure(cell: CellEvents) -> list[ArmMeasured]:
    """Measure every arm of a cell."""
    config = cell.config
    model, workload = _first(cell, ModelPrepared), _first(cell, WorkloadReady)
    views = _views(cell)
    found = []
    by_arm = [{events.arm: events for events in split_by_arm(view)} for view in views]
    for result in arm_results(views[0]):
        measured = []
        for done in cell.repeats(result.arm):
            mine = by_arm[done.repeat][result.arm]
            if model and workload and mine.pool:
                one = _measured(mine, config, model, workload, done, mine.pool)
                measured.append(replace(one, fits=result.fits))
        found.append(ArmMeasured(result, measured[0] if measured else None, measured[1:]))
    return found


def _views(cell: CellEvents) -> list[Record]:
    most = max((event.repeat for event in cell._repeats()), default=0)
    return [cell.view(repeat) for repeat in range(most + 1)]


def _measured(
    events: ArmEvents,
    config: Config,
    model: ModelPrepared,
    workload: WorkloadReady,
    done: RepeatFinished,
    pool: PoolReserved,
) -> Measured:
    rows, problem = timeline(events)
    return Measured(
        arm=events.arm,
        config=config,
        model=model,
        workload=workload,
        pool=pool,
        rows=[row for row in rows if row.tokens],
        requests=events.requests,
        moved={moved.request: moved.bytes for moved in events.moved},
        prefix=events.prefix,
        quantized=events.quantized,
        generate_s=done.generate_s,
        lookup=events.lookup,
        holes={each.allocator: each for each in events.holes},
        engine_steps=events.engine_steps,
        problem=problem,
    )


def _first(cell: CellEvents, kind: type[T]) -> T | None:
    return next((event for event in cell.events if isinstance(event, kind)), None)
