"""Looking at vLLM's scheduler takes time, and none of it is vLLM's."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from experiment.events.arm_clock import Clock
from experiment.vllm_worker.watcher import SchedulerWatcher
from kvsim.core.observed import ScheduleTrace

DECIDES_NS, LOOKS_NS = 5, 300


@pytest.fixture
def moment(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Nanoseconds of a clock that stands where nobody moves it."""
    now = [1000]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    return now


def scheduler(now: list[int]) -> Any:
    """One that decides on a request in two blocks; who asks it for them waits."""
    request = SimpleNamespace(request_id="r", num_computed_tokens=6, num_tokens=6)

    def decide() -> Any:
        now[0] += DECIDES_NS
        return SimpleNamespace(num_scheduled_tokens={"r": 1}, preempted_req_ids=None)

    def blocks(name: str) -> list[list[int]]:
        assert name == "r"
        now[0] += LOOKS_NS
        return [[4, 7]]

    return SimpleNamespace(
        running=[request], requests={"r": request}, schedule=decide,
        kv_cache_manager=SimpleNamespace(get_block_ids=blocks),
        get_request_counts=lambda: (1, 2),
    )  # fmt: skip


def test_what_it_takes_to_look_is_on_nobodys_clock(moment: list[int]) -> None:
    clock, watched = Clock(), scheduler(moment)
    watcher = SchedulerWatcher(watched, ScheduleTrace(4), {"r": 0}, clock.paused)
    watcher.attach()
    began = clock.now()
    watched.schedule()
    assert clock.now() - began == DECIDES_NS
    assert moment[0] - 1000 == DECIDES_NS + LOOKS_NS
    (taken,) = watcher.decisions
    assert taken.tables == {0: [4, 7]}
    assert taken.plan.waiting == 2
    watcher.detach()
    watched.schedule()
    assert len(watcher.decisions) == 1
