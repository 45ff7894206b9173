"""Parts of a real run that several folders of tests begin with; whether a process has ended."""

from __future__ import annotations

from pathlib import Path

import psutil

from experiment.config import Config
from experiment.environment import Environment
from experiment.record import EventLog
from experiment.runner import Prepared, Session


def look_at_the_machine(directory: Path) -> Environment:
    """What the probing process finds without a GPU."""
    with EventLog(directory) as log:
        found = Session(directory, log, lambda event: None).probe_environment("cpu")
    assert isinstance(found, Environment)
    return found


def prepare(
    directory: Path, config: Config, environment: Environment, prompts: list[str]
) -> Prepared:
    """Model and requests as the preparing process leaves them."""
    with EventLog(directory) as log:
        session = Session(directory, log, lambda event: None)
        made = session.prepare(config, environment, prompts)
    assert isinstance(made, Prepared), made
    return made


def is_gone(pid: int) -> bool:
    """Whether the process has ended, or does within some seconds."""
    try:
        process = psutil.Process(pid)
        process.wait(10)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return process.status() == psutil.STATUS_ZOMBIE  # ended, and nobody has asked how
    return True
