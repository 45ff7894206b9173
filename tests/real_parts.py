"""Parts of a real run that several folders of tests begin with; whether a process has ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import psutil

from experiment.config.reading import as_recorded
from experiment.config.schema import Config
from experiment.events import Event, RunFinished, RunStarted
from experiment.machine.environment import Environment
from experiment.record.log import EventLog, Record, read_record
from experiment.runner.session import Session
from experiment.workload.prepared import Prepared


def look_at_the_machine(directory: Path) -> Environment:
    """What the probing process finds without a GPU."""
    with EventLog(directory) as log:
        found = Session(directory, log, lambda event: None).probe_environment("cpu")
    assert isinstance(found, Environment)
    return found


@contextmanager
def session_in(directory: Path) -> Iterator[Session]:
    """A run that has its first line and nothing else."""
    with EventLog(directory) as log:
        made = Session(directory, log, lambda event: None)
        started = {"version": "1", "wall_ns": 0, "utc_offset_s": 0, "lang": "en"}
        made.emit(RunStarted.model_validate({**started, "command": [], "config": {}}))
        yield made
        made.close()


def prepare(
    directory: Path, config: Config, environment: Environment, prompts: list[str]
) -> Prepared:
    """Model and requests as the preparing process leaves them."""
    directory.mkdir(exist_ok=True)
    with EventLog(directory) as log:
        session = Session(directory, log, lambda event: None)
        made = session.prepare(config, environment, prompts)
    assert isinstance(made, Prepared), made
    return made


def run_arms(
    directory: Path,
    config: Config,
    environment: Environment,
    prepared: Prepared,
    listener: Callable[[Event], None] = lambda event: None,
    status: Literal["complete"] | None = None,
) -> Record:
    """Run every arm of the config in a process of its own, whatever becomes of each.

    Without ``status`` nobody says how the run ended: its log is left as a broken one's is.
    """
    directory.mkdir(exist_ok=True)
    with EventLog(directory) as log:
        session = Session(directory, log, listener)
        session.emit(
            RunStarted(
                version="test", wall_ns=0, utc_offset_s=0, lang="en", command=[],
                config=as_recorded(config),
            )
        )  # fmt: skip
        session.emit(prepared.model)
        session.emit(prepared.workload)
        for arm in config.arm_names:
            session.run_arm(arm, config, environment, prepared)
        if status:
            session.emit(RunFinished(status=status))
    return read_record(directory)


def is_gone(pid: int) -> bool:
    """Whether the process has ended, or does within some seconds."""
    deadline = time.monotonic() + 10
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        while process.status() != psutil.STATUS_ZOMBIE:  # ended, and nobody has asked how
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
    return True
