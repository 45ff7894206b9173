"""One round: a run directory with every arm in it, and the rows that its record gives."""

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
class Ground:
    """What all rounds stand on: the machine, the model, and who is told."""

    environment: Environment
    prepared: Prepared
    listener: Listener
    starting: Callable[[str], None]


def grounded(ground: Ground, config: Config, workload: Workload) -> Ground:
    """The same with the requests of a workload, drawn by the config's seed."""
    made = ready(workload, ground.prepared.model, config.cache.block_size, config.run.seed)
    return replace(ground, prepared=replace(ground.prepared, workload=made))


@dataclass(slots=True)
class RoundResult:
    """Rows and profiles of a round; ``seconds`` are those of each arm's process.

    ``interrupted``: somebody pressed Ctrl-C; what was measured before is there.
    """

    rows: list[Row] = field(default_factory=list)
    profiles: list[Profile] = field(default_factory=list)
    limits: MachineLimits | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    interrupted: bool = False


def run_round(
    directory: Path,
    ground: Ground,
    config: Config,
    workload: str,
    number: int,
    order: Sequence[str],
    limits: bool = True,
) -> RoundResult:
    """Run the arms in their order, each in a fresh process, and read what was written down.

    ``limits``: measure what the machine does at best, before the arms and behind them.
    """
    directory.mkdir(parents=True)
    result = RoundResult()
    noise: dict[str, dict[str, Any]] = {}
    with EventLog(directory) as log:
        session = Session(directory, log, ground.listener)
        _head(session, ground, config)
        try:
            if limits:
                _measure_limits(session, ground, config, result)
            for arm in order:
                ground.starting(arm)
                noise[arm] = {"load_average": load_average(), "others_cores": others_cores()}
                begin = time.monotonic()
                session.run_arm(arm, config, ground.environment, ground.prepared)
                result.seconds[arm] = time.monotonic() - begin
            if limits:
                _measure_limits(session, ground, config, result)
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
    except KeyboardInterrupt:
        result.interrupted = True
    return result


def _head(session: Session, ground: Ground, config: Config) -> None:
    session.emit(
        RunStarted(
            version=__version__,
            lang="en",
            command=["bench"],
            config=as_recorded(config),
            **wall_clock(),
        )
    )
    session.emit(EnvironmentProbed(environment=ground.environment.model_dump(mode="json")))
    session.emit(ground.prepared.model)
    session.emit(ground.prepared.workload)


def _measure_limits(session: Session, ground: Ground, config: Config, result: RoundResult) -> None:
    """Once more: of each rate the larger counts."""
    ground.starting("limits")
    found = session.measure_limits(_limits_task(ground, config), config)
    result.limits = fastest([each for each in (result.limits, found) if each is not None])


def _limits_task(ground: Ground, config: Config) -> dict[str, Any]:
    return {
        "directory": ground.prepared.directory,
        "device": ground.environment.device,
        "dtype": ground.prepared.model.dtype,
        "threads": config.run.threads,
    }
