"""Leads through an experiment: each arm of each cell in a process of its own, which take turns.

environment ─ what the experiment asks ─ gate ─ cell 1: arm, arm … ─ cell 2 … ─ turns ─ files
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from experiment.arms.launch import refusal_reason
from experiment.config.schema import Config
from experiment.events import (
    ArmFailed,
    ArmSkipped,
    CellStarted,
    ModelPrepared,
    Notice,
    WorkloadReady,
)
from experiment.experiments.base import Experiment, cell_config, planned_cells
from experiment.experiments.cells import Cell
from experiment.experiments.evaluate import cell_result
from experiment.experiments.measured import cells_of
from experiment.experiments.registry import find_experiment
from experiment.machine.environment import Environment
from experiment.measure.resume import Resumption
from experiment.measure.watcher import CellsWatcher, Watcher
from experiment.record.log import EVENTS_FILE, read_record
from experiment.runner.interleave import Interleaver
from experiment.runner.session import PreparedCell, Session
from experiment.text.messages import Message
from experiment.workload.prepared import Prepared


def check_experiment(config: Config) -> None:
    """See that the experiment of a config, if it names one, has cells that fit.

    Raises:
        UserError: no such experiment, or a value that does not fit.
    """
    if config.experiment.name is not None:
        spec = find_experiment(config.experiment.name)
        for cell in planned_cells(spec, config):
            cell_config(config, cell)


def measure_cells(
    session: Session,
    watcher: Watcher,
    live: CellsWatcher,
    config: Config,
    environment: Environment,
    gate: Callable[[], None],
    resumption: Resumption | None = None,
) -> ArmFailed | None:
    """Every cell up to the last arm, or what is missing of them; returns the first failure.

    Raises:
        UserError: a run that is to go on cannot go on here.
    """
    spec = find_experiment(config.experiment.name or "")
    cells = planned_cells(spec, config, environment.device)
    configs = [cell_config(config, cell) for cell in cells]
    for each in configs:
        refused = refusal_reason(each, environment)
        if refused is not None:
            return session.refuse(refused)
    for notice in spec.notices(config):
        session.emit(Notice(text=notice))
    values = [dict(cell.values) for cell in cells]
    live.introduce(spec.name, values, [each.experiment.repeats for each in configs])
    watcher.begin_task("progress.prepare")
    session.start_compiling(config.arm_names, config, environment.device)
    prepared = session.prepare_cells([(c, c.arm_names) for c in configs], environment)
    session.finish_compiling()
    watcher.end_task()
    if isinstance(prepared, ArmFailed):
        return prepared
    for index, given in enumerate(prepared if resumption else ()):
        assert resumption is not None
        resumption.check_prepared(given.prepared.model, given.prepared.workload, index)
    gate()
    session.begin()
    with Interleaver[ArmFailed | None](partial(live.begin_turn, configs)) as turns:
        for index, given in enumerate(prepared):
            mine = configs[index]
            arms = mine.arm_names
            if resumption is not None:
                arms = tuple(arm for cell, arm in resumption.missing if cell == index)
            if not arms:
                continue
            if spec.spared is not None or not turns.has_room(len(arms)):
                turns.run()
            started, first = opening(index, cells, mine, given.prepared)
            for event in (started, *first):
                session.emit(event)
            spared = _spared(spec, session, cells[index])
            may = replace(given, refused=given.refused | spared)
            _begin_cell(session, live, started, mine, environment, may, arms, turns)
        turns.run()
        live.end()
    return next((turns.ended[place] for place in sorted(turns.ended) if turns.ended[place]), None)


def _spared(spec: Experiment, session: Session, cell: Cell) -> dict[str, Message]:
    """Arms that a cell need not run, by what the log holds of the cells before it.

    Raises:
        OSError: the log is there no more.
    """
    if spec.spared is None:
        return {}
    (session.directory / EVENTS_FILE).stat()  # taken away, it is no run to be read
    before = cells_of(read_record(session.directory, own=True))
    return spec.spared(cell, before, partial(cell_result, spec))


def opening(
    index: int, cells: Sequence[Cell], config: Config, prepared: Prepared
) -> tuple[CellStarted, list[ModelPrepared | WorkloadReady | ArmSkipped]]:
    """What the log says of a cell before its first arm; of arms that it cannot have, why."""
    cell = cells[index]
    started = CellStarted(
        index=index,
        of=len(cells),
        values=dict(cell.values),
        overrides=dict(cell.overrides),
        arms=list(config.arm_names),
    )
    # They were made before all cells; in the log they belong to this one.
    now = {"t_ns": time.monotonic_ns()}
    model, workload = prepared.model, prepared.workload
    absent = (ArmSkipped(arm=arm, reason=why) for arm, why in cell.absent.items())
    return started, [model.model_copy(update=now), workload.model_copy(update=now), *absent]


def _begin_cell(
    session: Session,
    live: CellsWatcher,
    started: CellStarted,
    config: Config,
    environment: Environment,
    given: PreparedCell,
    arms: Sequence[str],
    turns: Interleaver[ArmFailed | None],
) -> None:
    """Every arm up to its first turn; to its end on a GPU, whose memory is looked at as a whole."""
    together = config.experiment.turns and environment.device == "cpu"
    for arm in arms:
        if arm in given.refused:
            session.emit(ArmSkipped(arm=arm, reason=given.refused[arm]))
            continue
        if not turns.has_room(1):
            turns.run()
            now = {"t_ns": time.monotonic_ns()}
            session.emit(started.model_copy(update=now))  # the log goes on with this cell
        live.begin(started, arm)
        course = session.arm_coroutine(arm, config, environment, given.prepared, started.index)
        turns.add((started.index, arm), course)
        live.end()
        if not together:
            turns.run()
