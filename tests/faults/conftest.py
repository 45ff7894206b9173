"""What every test of faults shares: the machine, looked at once, and programs to break."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from programs import Starter

from experiment.environment import Environment

# What runs an experiment without its processes serves here as well.
sys.path.append(str(Path(__file__).parents[1] / "experiments"))


@pytest.fixture
def start(tmp_path: Path, environment: Environment) -> Iterator[Starter]:
    place = tmp_path / "programs"
    place.mkdir()
    data: dict[str, Any] = environment.model_dump(mode="json")
    starter = Starter(place, data)
    yield starter
    starter.clean_up()
