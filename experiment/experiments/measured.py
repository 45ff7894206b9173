"""Split the record of an experiment into cells and repeats.

    events    run_started … │ cell 0 │ model workload │ arm … steps │repeat 0│ steps │repeat 1│ …
                            │ cell 1 │ …
    a view    events before the first cell, the cell's own, and those of one repeat

A view has the form of an ordinary run's record, for all code that reads those.
"""

from __future__ import annotations

from dataclasses import dataclass

from experiment.analysis.arm_results import arm_results
from experiment.analysis.results import ArmResult
from experiment.config.schema import Config, make_config
from experiment.events import (
    CellStarted,
    Event,
    ModelPrepared,
    PoolReserved,
    RequestFinished,
    RunFinished,
    WorkloadReady,
)
from experiment.experiments.base import cell_config
from experiment.experiments.cells import Cell, CellEvents
from experiment.record.log import Record
from experiment.replay.arm_events import ArmEvents, split_by_arm
from experiment.replay.step_rows import StepRow
from experiment.replay.timeline import timeline
from experiment.text.messages import Message


def cells_of(record: Record) -> list[CellEvents]:
    """The cells of an experiment, in order; empty for an ordinary run."""
    before: list[Event] = []
    cells: dict[int, tuple[CellStarted, list[Event]]] = {}
    ends: list[Event] = []
    for here, event in record.by_cell():
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

    ``rows`` are the steps that computed something; ``fits`` the requests of this
    shape that fit in the budget; ``problem`` a contradiction in the replay.
    """

    config: Config
    model: ModelPrepared
    workload: WorkloadReady
    pool: PoolReserved
    events: ArmEvents
    rows: list[StepRow]
    generate_s: float
    fits: int | None
    problem: Message | None

    @property
    def requests(self) -> list[RequestFinished]:
        """The finished requests."""
        return self.events.requests


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
    model, workload = cell.first(ModelPrepared), cell.first(WorkloadReady)
    views = cell.views()
    found = []
    by_arm = [{events.arm: events for events in split_by_arm(view)} for view in views]
    for result in arm_results(views[0]):
        measured = []
        for done in cell.repeats(result.arm):
            mine = by_arm[done.repeat][result.arm]
            if model and workload and mine.pool:
                rows, problem = timeline(mine)
                measured.append(Measured(
                    config=config,
                    model=model,
                    workload=workload,
                    pool=mine.pool,
                    events=mine,
                    rows=[row for row in rows if row.tokens],
                    generate_s=done.generate_s,
                    fits=result.fits,
                    problem=problem,
                ))  # fmt: skip
        found.append(ArmMeasured(result, measured[0] if measured else None, measured[1:]))
    return found
