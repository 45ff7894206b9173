"""The clock of an arm stands still during readings, and only the first repeat is read."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from experiment.arms.base import ArmRun
from experiment.config.schema import ExperimentConfig
from experiment.events import (
    Keyframe,
    Progress,
    Reading,
    Stage,
    StageEntered,
    Step,
    WorkloadRequest,
)
from experiment.events.arm_clock import Clock
from experiment.workload.arm_reporter import ArmReporter
from experiment.workload.request_times import RequestProgress
from kvsim.core.step import FinishReason, StepPlan

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


@pytest.mark.parametrize(("experiment", "before"), [(None, True), ("capacity", False)])
def test_first_prompts_are_due_where_no_first_repeat_warms_up(
    experiment: str | None, before: bool
) -> None:
    config = SimpleNamespace(experiment=ExperimentConfig(name=experiment))
    task: Any = SimpleNamespace(device="cpu", config=config)
    assert ArmRun(task, task, 0.0).has_warm_up is before


def test_a_step_is_logged_without_what_was_measured_in_the_middle_of_it() -> None:
    sent: list[Any] = []
    config = SimpleNamespace(run=SimpleNamespace(witness=False))
    request = SimpleNamespace(max_new_tokens=1)
    workload = SimpleNamespace(requests=[request])
    task: Any = SimpleNamespace(device="cpu", arm="paged", config=config, workload=workload)
    wire: Any = SimpleNamespace(emit=sent.append)
    run = ArmRun(wire, task, 0.0)
    began = run.now()
    time.sleep(_PAUSE_S)
    with run.paused():
        time.sleep(_PAUSE_S)
    time.sleep(_PAUSE_S)
    before = time.monotonic_ns()
    run.step(StepPlan(0), began, run.snapshot(0, dict, dict))
    (step,) = (event for event in sent if isinstance(event, Step))
    assert 2 * _PAUSE_S * 1e9 <= step.t_ns - step.started_ns < 3 * _PAUSE_S * 1e9
    assert before <= step.t_ns <= time.monotonic_ns()
    (keyframe,) = (event for event in sent if isinstance(event, Keyframe))
    assert sent.index(step) < sent.index(keyframe)


class Silent(ArmReporter):
    """An arm that reads nothing itself."""

    def readings(self, stage: Stage, request: int | None) -> list[Reading]:
        return []

    def text_of(self, tokens: list[int]) -> str:
        return ""


def test_requests_are_marked_in_the_first_repeat_alone_and_progress_begins_anew_in_each() -> None:
    request = WorkloadRequest(id=0, prompt="p", token_ids=[1], max_new_tokens=2)
    task: Any = SimpleNamespace(arm="paged", workload=SimpleNamespace(requests=[request]))
    sent: list[Any] = []
    marked: list[Any] = []
    wire: Any = SimpleNamespace(emit=sent.append, mark=marked.append)
    arm = Silent(wire, task)
    for _ in arm.repeats(2):
        arm.begin_generation()
        one = RequestProgress(request)
        one.begin(arm.now())
        arm.log_step(StepPlan(0), time.monotonic_ns(), 0, first_tokens=2)
        arm.request_finished(one, FinishReason.LENGTH, [1, 2], arm.now())
    stages = [event.stage for event in marked if isinstance(event, StageEntered)]
    assert stages == [Stage.REQUEST_DONE]
    assert [event.done for event in sent if isinstance(event, Progress)] == [0, 2] * 3


def test_what_is_raised_inside_a_pause_ends_it() -> None:
    clock = Clock()
    with pytest.raises(KeyError), clock.paused():
        raise KeyError
    first = clock.now()
    time.sleep(0.001)
    assert clock.now() > first
