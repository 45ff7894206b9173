"""Arms that take turns: in which order, what a failure or an end does to the others, for real."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from made_up_machine import cpu_environment
from real_parts import is_gone, session_in

from experiment.events import Event, Notice, Reading, TurnAwaited, TurnStarted
from experiment.memory.monitor import Monitor
from experiment.process.child_end import ChildEnd
from experiment.record.log import read_record
from experiment.runner import interleave as module
from experiment.runner.interleave import ArmCoroutine, Interleaver, Place, Turn, run_to_completion
from experiment.runner.session import Session

MODULE = "scripted_child"
REPEATS = 3


def course(place: Place, said: list[object], repeats: int = REPEATS) -> ArmCoroutine[str]:
    """An arm that writes down when it goes on, and when it is ended before its time."""
    said.append(("warm-up", place))
    try:
        for repeat in range(1, repeats + 1):
            turn = yield TurnAwaited(arm=place[1], repeat=repeat)
            assert turn is not None
            assert turn.place == place
            said.append((repeat, place))
    except GeneratorExit:
        said.append(("closed", place))
        raise
    return f"{place} ended"


def told() -> tuple[list[tuple[Turn, int]], Interleaver[str]]:
    begun: list[tuple[Turn, int]] = []
    return begun, Interleaver(lambda turn, repeat: begun.append((turn, repeat)))


A, B, C = (0, "a"), (0, "b"), (1, "a")


def test_every_arm_is_warm_before_the_first_turn_and_every_second_round_goes_backwards() -> None:
    said: list[object] = []
    begun, turns = told()
    with turns:
        for place in (A, B, C):
            turns.add(place, course(place, said))
        assert said == [("warm-up", place) for place in (A, B, C)]
        turns.run()
    rounds = [[(1, A), (1, B), (1, C)], [(2, C), (2, B), (2, A)], [(3, A), (3, B), (3, C)]]
    assert said[3:] == [turn for each in rounds for turn in each]
    assert turns.ended == {place: f"{place} ended" for place in (A, B, C)}
    assert [(repeat, turn.place) for turn, repeat in begun] == said[3:]
    assert {turn.of for turn, _ in begun} == {3}
    assert len({turn.group for turn, _ in begun}) == 1


def test_whoever_joins_later_is_of_another_group_and_who_is_alone_of_none() -> None:
    begun, turns = told()
    with turns:
        for places in ((A, B), (C,), ((2, "a"), (2, "b"))):
            for place in places:
                turns.add(place, course(place, [], 1))
            turns.run()
    groups = [turn.group for turn, _ in begun]
    assert [turn.of for turn, _ in begun] == [2, 2, 1, 2, 2]
    assert groups[0] == groups[1]
    assert groups[2] is None
    assert groups[3] == groups[4]
    assert len(set(groups)) == 3


def test_an_arm_that_ends_early_leaves_the_others_their_turns() -> None:
    said: list[object] = []
    _, turns = told()
    with turns:
        for place, repeats in ((A, 1), (B, 3), (C, 0)):
            turns.add(place, course(place, said, repeats))
        assert set(turns.ended) == {C}
        turns.run()
    assert said[3:] == [(1, A), (1, B), (2, B), (3, B)]
    assert set(turns.ended) == {A, B, C}


@pytest.mark.parametrize(
    ("waiting", "more", "available", "limit", "room"),
    [
        (0, 100, 0, None, True),  # nobody waits who could be run to his end instead
        (1, 1, 4.6, None, True),  # 0.4 of it for one more, 4 of 16 stay free
        (1, 1, 4.5, None, False),
        (1, 2, 4.6, None, False),
        (1, 2, 5.2, None, True),
        (1, 1, 16, 0.5, False),  # of a control group
        (1, 1, 16, 0, False),  # which has nothing left
        (15, 1, 16, None, True),
        (15, 2, 16, None, False),  # a killed run would lose them all
    ],
)
def test_as_many_wait_as_memory_suffices_for(
    waiting: int, more: int, available: float, limit: float | None, room: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    gib = 1 << 30
    memory = SimpleNamespace(available=available * gib, total=16 * gib)
    process = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=0.4 * gib))
    free = None if limit is None else limit * gib
    group = SimpleNamespace(memory_bytes=None if limit is None else 2 * gib, memory_free_bytes=free)
    monkeypatch.setattr(module.psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(module, "descendants", lambda _: [process])
    monkeypatch.setattr(module, "read_cgroup", lambda: group)
    _, turns = told()
    with turns:
        for number in range(waiting):
            turns.add((number, "a"), course((number, "a"), []))
        assert turns.has_room(more) is room


# Real processes from here on.


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    with session_in(tmp_path) as made:
        yield made


def arm(
    session: Session, name: str, script: str = "turns", limit_s: float = 60, watched: bool = False
) -> ArmCoroutine[ChildEnd]:
    def monitor(pid: int) -> Monitor:
        return Monitor(name, pid, cpu_environment(), session.emit, 5)

    task = {"arm": name, "script": script}
    return session._child_coroutine(name, MODULE, task, limit_s, monitor if watched else None)


def to_its_end(course: ArmCoroutine[ChildEnd], turn: Turn | None) -> ChildEnd:
    try:
        while True:
            course.send(turn)
    except StopIteration as end:
        ended: ChildEnd = end.value
        return ended


def events(session: Session) -> list[Event]:
    return list(read_record(session.directory).events)


def pids(session: Session) -> list[int]:
    return [e.text.params["pid"] for e in read_record(session.directory).of(Notice)
            if "pid" in e.text.params]  # fmt: skip


def test_processes_take_turns_and_the_log_says_whose(session: Session) -> None:
    with Interleaver[ChildEnd](lambda turn, repeat: None) as turns:
        for place in (A, B):
            turns.add(place, arm(session, place[1]))
        assert all(psutil.pid_exists(pid) for pid in pids(session))
        turns.run()
    assert all(end.exit_code == 0 and end.ok for end in turns.ended.values())
    seen = [
        (e.cell, e.arm, e.repeat) if isinstance(e, TurnStarted) else e.text.params["repeat"]
        for e in events(session)
        if isinstance(e, TurnStarted) or (isinstance(e, Notice) and "repeat" in e.text.params)
    ]
    assert seen == [(0, "a", 1), 1, (0, "b", 1), 1, (0, "b", 2), 2, (0, "a", 2), 2]
    assert not read_record(session.directory).of(TurnAwaited)


def test_alone_nobody_waits_and_the_log_names_no_turn(session: Session) -> None:
    assert run_to_completion(arm(session, "a")).ok
    assert not read_record(session.directory).of(TurnStarted)
    assert len(read_record(session.directory).of(Notice)) == 3


def test_one_that_is_killed_while_it_waits_fails_alone(session: Session) -> None:
    with Interleaver[ChildEnd](lambda turn, repeat: None) as turns:
        for place in (A, B):
            turns.add(place, arm(session, place[1], watched=True))
        os.kill(pids(session)[0], signal.SIGKILL)
        turns.run()
    assert turns.ended[A].exit_code == -signal.SIGKILL
    assert turns.ended[B].ok


def test_whoever_leaves_ends_those_that_wait(session: Session) -> None:
    def leave() -> None:
        with Interleaver[ChildEnd](lambda turn, repeat: None) as turns:
            for place in (A, B):
                turns.add(place, arm(session, place[1], watched=True))
            assert len(pids(session)) == 2
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        leave()
    assert all(is_gone(pid) for pid in pids(session))


def test_waiting_for_others_is_no_time_of_its_own(session: Session) -> None:
    waiting = arm(session, "a", limit_s=3)
    next(waiting)
    time.sleep(3.5)
    assert to_its_end(waiting, None).ok


def test_nobody_looks_at_one_that_waits(session: Session) -> None:
    waiting = arm(session, "a", watched=True)
    next(waiting)
    time.sleep(0.1)  # a sample that was being taken is written by now
    before = len(events(session))
    time.sleep(0.6)  # the turn of another one
    assert len(events(session)) == before
    assert to_its_end(waiting, Turn((0, "a"), 1, 1)).ok
    behind = events(session)[before:]
    assert isinstance(behind[0], TurnStarted)
    assert any(isinstance(event, Reading) for event in behind)
