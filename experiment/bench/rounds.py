"""A round: the order of its arms, its run directory, and the rows of its record."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from experiment import __version__
from experiment.bench.profiles import Profile, profiles_of
from experiment.bench.rows import Row, rows_of
from experiment.bench.shares import fastest
from experiment.bench.workloads import Workload, ready
from experiment.config.reading import as_recorded
from experiment.config.schema import Config
from experiment.events import EnvironmentProbed, Event, MachineLimits, RunFinished, RunStarted
from experiment.events.wall_clock import wall_clock
from experiment.machine.background_load import load_average, others_cores
from experiment.machine.environment import Environment
from experiment.process.interrupts import shielded
from experiment.record.log import EventLog, read_record
from experiment.runner.session import Session
from experiment.workload.prepared import Prepared

Listener = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class RoundContext:
    """Machine, model and callbacks, shared by all rounds."""

    environment: Environment
    prepared: Prepared
    listener: Listener
    starting: Callable[[str], None]


def round_order(arms: Sequence[str], number: int) -> list[str]:
    """Order of the arms in round ``number``: odd rounds reversed, every two rounds rotated by one.

    Drift over the run, such as heat or background load, then affects all arms.
    """
    shift = (number // 2) % len(arms) if arms else 0
    order = [*arms[shift:], *arms[:shift]]
    return order[::-1] if number % 2 else order


def with_workload(context: RoundContext, config: Config, workload: Workload) -> RoundContext:
    """Context with the requests of a workload, sampled with the config's seed."""
    made = ready(workload, context.prepared.model, config.cache.block_size, config.run.seed)
    return replace(context, prepared=replace(context.prepared, workload=made))


@dataclass(slots=True)
class RoundResult:
    """Rows and profiles of a round; ``seconds`` are those of each arm's process.

    ``interrupted``: by Ctrl-C; earlier measurements are included.
    """

    rows: list[Row] = field(default_factory=list)
    profiles: list[Profile] = field(default_factory=list)
    limits: MachineLimits | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    interrupted: bool = False


def run_round(
    directory: Path,
    context: RoundContext,
    config: Config,
    workload: str,
    number: int,
    order: Sequence[str],
    limits: bool = True,
) -> RoundResult:
    """Run the arms in order, each in a new process, and evaluate the record.

    ``limits``: measure the limits of the machine before and after the arms.
    """
    directory.mkdir(parents=True)
    result = RoundResult()
    noise: dict[str, dict[str, Any]] = {}
    with EventLog(directory) as log:
        session = Session(directory, log, context.listener)
        _head(session, context, config)
        try:
            if limits:
                _measure_limits(session, context, config)
            for arm in order:
                context.starting(arm)
                noise[arm] = {"load_average": load_average(), "others_cores": others_cores()}
                begin = time.monotonic()
                session.run_arm(arm, config, context.environment, context.prepared)
                result.seconds[arm] = time.monotonic() - begin
            if limits:
                _measure_limits(session, context, config)
        except KeyboardInterrupt:
            result.interrupted = True
        status: Literal["interrupted", "complete"]
        status = "interrupted" if result.interrupted else "complete"
        session.emit(RunFinished(status=status))
    try:
        with shielded():  # a round takes minutes
            record = read_record(directory, own=True)
            result.rows = [
                row.model_copy(update=noise[row.arm] | {"wall_s": result.seconds.get(row.arm)})
                for row in rows_of(record, workload, number)
            ]
            result.profiles = profiles_of(record, workload, number)
            result.limits = fastest(record.of(MachineLimits))
    except KeyboardInterrupt:
        result.interrupted = True
    return result


def _head(session: Session, context: RoundContext, config: Config) -> None:
    session.emit(
        RunStarted(
            version=__version__,
            lang="en",
            command=["bench"],
            config=as_recorded(config),
            **wall_clock(),
        )
    )
    session.emit(EnvironmentProbed(environment=context.environment.model_dump(mode="json")))
    session.emit(context.prepared.model)
    session.emit(context.prepared.workload)


def _measure_limits(session: Session, context: RoundContext, config: Config) -> None:
    """Measure the limits of the machine into the log."""
    context.starting("limits")
    task = {
        "directory": context.prepared.directory,
        "device": context.environment.device,
        "dtype": context.prepared.model.dtype,
        "threads": config.run.threads,
    }
    session.measure_limits(task, config)
