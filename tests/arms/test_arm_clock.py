"""The clock of an arm: it stands still while readings are taken, whoever looks at it then."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from experiment.arm_clock import Clock
from experiment.arms.base import ArmRun

_PAUSE_S = 0.2  # much longer than an idle process waits for a core


def test_it_stands_still_inside_a_pause_and_goes_on_from_there() -> None:
    task: Any = SimpleNamespace(device="cpu")
    run = ArmRun(task, task, 0.0)
    before = run.now()
    with run.paused():
        stopped = run.now()
        time.sleep(_PAUSE_S)
        with run.paused():
            assert run.now() == stopped
        assert run.now() == stopped
    after = run.now()
    assert before <= stopped <= after
    assert after - stopped < _PAUSE_S * 1e9  # the pause itself is not in it


def test_the_device_is_done_when_it_stops_and_when_it_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task: Any = SimpleNamespace(device="cpu")
    run, waited = ArmRun(task, task, 0.0), []
    monkeypatch.setattr(run, "synchronize", lambda: waited.append(run.now()))
    with run.paused():
        stopped = run.now()
        assert len(waited) == 1
    assert len(waited) == 2
    assert waited[0] <= stopped == waited[1]  # what was asked for inside is not on the clock


def test_what_is_raised_inside_a_pause_ends_it() -> None:
    clock = Clock()
    with pytest.raises(KeyError), clock.paused():
        raise KeyError
    first = clock.now()
    time.sleep(0.001)
    assert clock.now() > first
