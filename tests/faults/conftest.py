"""What every test of faults shares: the machine, looked at once, and programs to break."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from programs import Starter

from experiment.environment import Environment
from experiment.record import EventLog
from experiment.runner import Session

# What runs an experiment without its processes serves here as well.
sys.path.append(str(Path(__file__).parents[1] / "experiments"))


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    directory = tmp_path_factory.mktemp("probe")
    with EventLog(directory) as log:
        found = Session(directory, log, lambda event: None).probe_environment("cpu")
    assert isinstance(found, Environment)
    return found


@pytest.fixture
def start(tmp_path: Path, environment: Environment) -> Iterator[Starter]:
    place = tmp_path / "programs"
    place.mkdir()
    data: dict[str, Any] = environment.model_dump(mode="json")
    starter = Starter(place, data)
    yield starter
    starter.clean_up()
