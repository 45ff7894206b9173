"""Who has arrived, by a clock that the test moves."""

from __future__ import annotations

from collections import deque

import pytest

from experiment.events import WorkloadRequest
from experiment.workload import arrival_clock
from experiment.workload.arrival_clock import ArrivalClock


def request(number: int, arrival: float) -> WorkloadRequest:
    return WorkloadRequest(id=number, prompt="", token_ids=[1], max_new_tokens=1, arrival=arrival)


def queue() -> deque[tuple[str, WorkloadRequest]]:
    return deque((f"r{n}", request(n, at)) for n, at in enumerate((0, 1, 1, 5)))


def taken(clock: ArrivalClock, coming: deque[tuple[str, WorkloadRequest]], idle: bool) -> list:  # type: ignore[type-arg]
    return [(one[0], moment) for one, moment in clock.admit(coming, lambda one: one[1], idle)]


def test_by_the_wall_clock_who_has_come_is_taken_and_the_next_one_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [3_000_000_000]
    naps = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        now[0] += round(seconds * 1e9)

    monkeypatch.setattr(arrival_clock.time, "sleep", nap)
    clock, coming = ArrivalClock(lambda: now[0], wall=True), queue()
    assert taken(clock, coming, idle=True) == [("r0", 3_000_000_000)]
    assert taken(clock, coming, idle=False) == []
    now[0] += 2_000_000_000
    assert taken(clock, coming, idle=False) == [("r1", 4_000_000_000), ("r2", 4_000_000_000)]
    assert not naps
    assert taken(clock, coming, idle=True) == [("r3", 8_000_000_000)]
    assert sum(naps) == pytest.approx(3)
    assert not coming
    assert taken(clock, coming, idle=True) == []


def test_by_steps_the_clock_goes_on_to_the_next_one_where_nobody_is_left() -> None:
    clock, coming = ArrivalClock(lambda: 7, wall=False), queue()
    assert [name for name, _ in taken(clock, coming, idle=True)] == ["r0"]
    clock.tick()
    assert [name for name, _ in taken(clock, coming, idle=False)] == ["r1", "r2"]
    clock.tick()
    assert taken(clock, coming, idle=False) == []
    assert [name for name, _ in taken(clock, coming, idle=True)] == ["r3"]
    assert clock.now == 5
