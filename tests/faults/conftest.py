"""What every test of faults shares: the machine, looked at once, and programs to break."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from programs import Starter

from experiment.machine.environment import Environment
from experiment.report.files import write as files


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "draw_plots", lambda *_: iter(()))  # seconds for each report


@pytest.fixture
def start(tmp_path: Path, environment: Environment) -> Iterator[Starter]:
    place = tmp_path / "programs"
    place.mkdir()
    starter = Starter(place, environment.model_dump(mode="json"))
    yield starter
    starter.clean_up()
