"""What a step's time takes in: whatever the engine does for it, and nothing that is measured."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from in_process import run, tiny_config

from experiment.engine.engine import Engine, StepOutcome
from experiment.engine.kv_pool import KVPool
from experiment.events import Step
from kvsim.core.step import Finish

_SLOW_S = 0.05


def test_ending_requests_is_in_it_and_counting_slots_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    complete, written_slots, counted = Engine.complete, KVPool.written_slots, []

    def completed(self: Engine, outcome: StepOutcome) -> tuple[Finish, ...]:
        time.sleep(_SLOW_S)
        return complete(self, outcome)

    def counts(self: KVPool) -> int:
        time.sleep(4 * _SLOW_S)
        counted.append(written_slots(self))
        return counted[-1]

    monkeypatch.setattr(Engine, "complete", completed)
    monkeypatch.setattr(KVPool, "written_slots", counts)
    config = tiny_config(
        "concurrency", run__arms=["paged"], run__witness=True, experiment__values=[2],
        experiment__options__requests=2, experiment__options__lengths=[[16, 8]],
    )  # fmt: skip
    ran = run(config, tmp_path / "run")
    steps = [each for each in ran.record.of(Step) if each.plan.chunks]
    took = sorted((each.t_ns - each.started_ns) / 1e9 for each in steps)
    assert counted
    assert took[0] >= _SLOW_S
    assert took[len(took) // 2] < 4 * _SLOW_S
