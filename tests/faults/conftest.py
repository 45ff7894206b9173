"""What every test of faults shares: the machine, looked at once, and programs to break."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from programs import Starter

from experiment.machine.environment import Environment
from experiment.report.files import write as files

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
FOREVER = "import time; time.sleep(600)"


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "draw_plots", lambda *_: iter(()))  # seconds for each report


@pytest.fixture
def foreground() -> Iterator[None]:
    """Signals as they are there: a test run in the background has interrupts ignored."""
    before = {number: signal.getsignal(number) for number in NUMBERS}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in NUMBERS[1:]:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def below() -> Iterator[subprocess.Popen[bytes]]:
    """A process below this one."""
    process = subprocess.Popen([sys.executable, "-S", "-c", FOREVER])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def start(tmp_path: Path, environment: Environment) -> Iterator[Starter]:
    place = tmp_path / "programs"
    place.mkdir()
    data: dict[str, Any] = environment.model_dump(mode="json")
    starter = Starter(place, data)
    yield starter
    starter.clean_up()
