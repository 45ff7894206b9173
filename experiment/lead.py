"""Leads through an experiment: its cells one after another, each arm in a process of its own.

environment ─ what the experiment asks ─ gate ─ cell 1: arm, arm … ─ cell 2 … ─ result ─ files
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from experiment.config import Config
from experiment.environment import Environment
from experiment.events import (
    ArmFailed,
    ArmSkipped,
    CellStarted,
    ModelPrepared,
    Notice,
    WorkloadReady,
)
from experiment.experiments.base import Cell, Experiment, cell_config, planned_cells
from experiment.experiments.busy import busy_notice
from experiment.experiments.measured import cells_of
from experiment.experiments.registry import find_experiment
from experiment.launch import Prepared, adapt, refuse
from experiment.messages import Message
from experiment.noise import kept_busy
from experiment.record import EVENTS_FILE, read_record
from experiment.report.console import ConsoleReporter
from experiment.report.experiment.live import ExperimentConsole
from experiment.resume import Resumption
from experiment.runner import PreparedCell, Session


def check_experiment(config: Config) -> None:
    """See that the experiment of a config, if it names one, has cells that fit.

    Raises:
        UserError: no such experiment, or a value that does not fit.
    """
    if config.experiment.name is not None:
        spec = find_experiment(config.experiment.name)
        for cell in planned_cells(spec, config):
            cell_config(config, cell)


def lead(
    session: Session,
    console: ConsoleReporter,
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
    cells = planned_cells(spec, config)
    configs, notices = _configs(config, cells, environment)
    for each in configs:
        refused = refuse(each, environment)
        if refused is not None:
            return session.refuse(refused)
    for notice in (*spec.notices(config), *notices):
        session.emit(Notice(text=notice))
    live = ExperimentConsole(console)
    values = [dict(cell.values) for cell in cells]
    live.introduce(spec.name, values, [each.experiment.repeats for each in configs])
    console.begin_task("progress.prepare")
    session.start_compiling(config.arm_names, config, environment.device)
    prepared = session.prepare_cells([(c, c.arm_names) for c in configs], environment)
    session.finish_compiling()
    console.end_task()
    if isinstance(prepared, ArmFailed):
        return prepared
    for index, given in enumerate(prepared if resumption else ()):
        assert resumption is not None
        resumption.check_prepared(given.prepared.model, given.prepared.workload, index)
    gate()
    session.begin()
    failure: ArmFailed | None = None
    for index, given in enumerate(prepared):
        arms = configs[index].arm_names
        if resumption is not None:
            arms = tuple(arm for cell, arm in resumption.missing if cell == index)
        if not arms:
            continue
        started, first = opening(index, cells, configs[index], given.prepared)
        for event in (started, *first):
            session.emit(event)
        spared = _spared(spec, session, cells[index])
        mine = replace(given, refused=given.refused | spared)
        failed = _run_cell(session, live, started, configs[index], environment, mine, arms)
        failure = failure or failed
    return failure


def _spared(spec: Experiment, session: Session, cell: Cell) -> dict[str, Message]:
    """Arms that a cell need not run, by what the log holds of the cells before it.

    Raises:
        OSError: the log is there no more.
    """
    if spec.spared is None:
        return {}
    (session.directory / EVENTS_FILE).stat()  # taken away, it is no run to be read
    return spec.spared(cell, cells_of(read_record(session.directory, own=True)))


def _configs(
    config: Config, cells: Sequence[Cell], environment: Environment
) -> tuple[list[Config], list[Message]]:
    """The config of each cell as this machine can run it; what was changed is said once."""
    configs, notices = [], []
    for cell in cells:
        mine, adapted = adapt(cell_config(config, cell), environment.device)
        configs.append(mine)
        notices += [notice for notice in adapted if notice not in notices]
    return configs, notices


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


def _run_cell(
    session: Session,
    live: ExperimentConsole,
    started: CellStarted,
    config: Config,
    environment: Environment,
    given: PreparedCell,
    arms: Sequence[str],
) -> ArmFailed | None:
    failure: ArmFailed | None = None
    for arm in arms:
        if arm in given.refused:
            session.emit(ArmSkipped(arm=arm, reason=given.refused[arm]))
            continue
        cores = kept_busy()
        if cores is not None:
            session.emit(busy_notice(started, arm, cores))
        live.begin(started, arm)
        failed = session.run_arm(arm, config, environment, given.prepared)
        live.end()
        failure = failure or failed
    return failure
