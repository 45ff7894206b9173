"""Merge the segments of a resumed run's log into one sequence of events.

    log       started model │ arm A │ arm B, killed ║ resumed model │ arm B │ arm C
    merged    started model resumed │ arm A │ arm B │ arm C

Of an arm that ran twice the later attempt counts. Times after an interruption are shifted onto the
first segment's clock by wall-clock time; differences within an arm do not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from experiment.config.arms import ARMS
from experiment.config.schema import expand_arms
from experiment.events import (
    ArmFailed,
    ArmSkipped,
    ArmStarted,
    CellStarted,
    EnvironmentProbed,
    Event,
    ModelPrepared,
    Notice,
    RunFinished,
    RunResumed,
    RunStarted,
    SecondPartRun,
    Step,
    TokenMargin,
    TurnStarted,
    WorkloadReady,
)
from experiment.text.errors import UserError

# Repeated after an interruption, and valid for the whole run.
_ONCE = (EnvironmentProbed, ModelPrepared, WorkloadReady)


def merged_events(events: Sequence[Event]) -> tuple[Event, ...]:
    """Merge the events of a log; those of an uninterrupted run are returned unchanged."""
    if not any(isinstance(event, RunResumed) for event in events):
        return tuple(events)
    parts = list(_on_one_clock(_segments(events)))
    run = _Scope()
    cells: dict[int, _Scope] = {}
    ends: list[Event] = []
    for number, part in enumerate(parts):
        ends = []
        where = run
        for event in part:
            if isinstance(event, RunFinished):
                ends.append(event)
            elif isinstance(event, CellStarted):
                where = cells.setdefault(event.index, _Scope([event]))
            else:
                if isinstance(event, TurnStarted):
                    where = cells.get(event.cell, where)
                where.take(event, number)
    started = events[0]
    merged = list(run.in_order(_order(started), len(parts) - 1))
    for index in sorted(cells):
        first = cells[index].whole[0]
        assert isinstance(first, CellStarted)
        merged += cells[index].in_order(first.arms, len(parts) - 1)
    return (*merged, *ends)


@dataclass(slots=True)
class _Scope:
    """Common events of a run or cell, and the attempts of each of its arms."""

    whole: list[Event] = field(default_factory=list)
    attempts: dict[str, dict[int, list[Event]]] = field(default_factory=dict)

    def take(self, event: Event, number: int) -> None:
        """Add one event of a segment."""
        arm = getattr(event, "arm", None)
        if arm is not None:
            self.attempts.setdefault(arm, {}).setdefault(number, []).append(event)
        elif not self._is_repeated(event):
            self.whole.append(event)

    def in_order(self, order: Sequence[str], last: int) -> Iterator[Event]:
        """Yield the common events, then every arm in its order; ``last`` is the last segment."""
        yield from self.whole
        places = {arm: place for place, arm in enumerate(order)}
        for arm in sorted(self.attempts, key=lambda arm: places.get(arm, len(order))):
            tries = self.attempts[arm]
            ran = [
                number
                for number, events in tries.items()
                if any(isinstance(event, ArmStarted | ArmSkipped | ArmFailed) for event in events)
            ]
            if arm not in ARMS:  # a stage of the preparation: only the last one stands
                yield from tries.get(last, ())
                continue
            chosen = max(ran, default=max(tries))
            yield from tries[chosen]
            # Token margins are computed after all arms, perhaps in a later segment.
            for number in sorted(tries):
                if number > chosen:
                    yield from (e for e in tries[number] if isinstance(e, TokenMargin))

    def _is_repeated(self, event: Event) -> bool:
        if isinstance(event, _ONCE):
            return any(isinstance(other, type(event)) for other in self.whole)
        if isinstance(event, Notice):
            return any(isinstance(e, Notice) and e.text == event.text for e in self.whole)
        return False


def _order(started: Event) -> Sequence[str]:
    """Arms of an ordinary run in their order; empty if unknown."""
    assert isinstance(started, RunStarted)
    try:
        return expand_arms(started.config["run"]["arms"])
    except (KeyError, TypeError, UserError):
        return ()


def _segments(events: Sequence[Event]) -> Iterator[list[Event]]:
    """Split into segments; each but the first begins with its RunResumed."""
    part: list[Event] = []
    for event in events:
        if isinstance(event, RunResumed):
            yield part
            part = []
        part.append(event)
    yield part


def _on_one_clock(parts: Iterable[list[Event]]) -> Iterator[list[Event]]:
    """Shift later segments onto the first one's clock: a reboot resets the monotonic clock.

    The shift is the difference in wall-clock time, but segments never overlap.
    """
    started: RunStarted | None = None
    end = 0
    for part in parts:
        first = part[0]
        moved: list[Event] = part
        if isinstance(first, RunStarted):
            started = first
        elif isinstance(first, RunResumed) and started is not None:
            wanted = max(started.t_ns + first.wall_ns - started.wall_ns, end)
            moved = [_shifted(event, wanted - first.t_ns) for event in part]
        end = max([end, *(event.t_ns for event in moved)])
        yield moved


def _shifted(event: Event, by_ns: int) -> Event:
    update: dict[str, Any] = {"t_ns": event.t_ns + by_ns}
    if isinstance(event, (Step, SecondPartRun)):
        update["started_ns"] = event.started_ns + by_ns
    return event.model_copy(update=update)
