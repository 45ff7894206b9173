"""A run that was resumed, told as one that was not: what every reader of the record is given.

    log       started model │ arm A │ arm B, killed ║ resumed model │ arm B │ arm C
    joined    started model resumed │ arm A │ arm B │ arm C

Of an arm that ran twice the later attempt counts; the first one stays in the log. Moments behind
a break are moved onto the clock of the beginning, by the wall clock; nothing within an arm moves.
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

# What is told once more after a break, and holds for all of the run.
_ONCE = (EnvironmentProbed, ModelPrepared, WorkloadReady)


def joined(events: Sequence[Event]) -> tuple[Event, ...]:
    """The events of a log, as its description says; those of an unbroken run as they are."""
    if not any(isinstance(event, RunResumed) for event in events):
        return tuple(events)
    parts = list(_on_one_clock(_parts(events)))
    run = _Part()
    cells: dict[int, _Part] = {}
    ends: list[Event] = []
    for number, part in enumerate(parts):
        ends = []
        where = run
        for event in part:
            if isinstance(event, RunFinished):
                ends.append(event)
            elif isinstance(event, CellStarted):
                where = cells.setdefault(event.index, _Part([event]))
            else:
                if isinstance(event, TurnStarted):
                    where = cells.get(event.cell, where)
                where.take(event, number)
    started = events[0]
    told = list(run.told(_order(started), len(parts) - 1))
    for index in sorted(cells):
        first = cells[index].whole[0]
        assert isinstance(first, CellStarted)
        told += cells[index].told(first.arms, len(parts) - 1)
    return (*told, *ends)


@dataclass(slots=True)
class _Part:
    """What belongs to the whole of a run or of a cell, and the attempts of each arm in it."""

    whole: list[Event] = field(default_factory=list)
    attempts: dict[str, dict[int, list[Event]]] = field(default_factory=dict)

    def take(self, event: Event, number: int) -> None:
        """Sort in one event of the stretch of this number."""
        arm = getattr(event, "arm", None)
        if arm is not None:
            self.attempts.setdefault(arm, {}).setdefault(number, []).append(event)
        elif not self._is_told(event):
            self.whole.append(event)

    def told(self, order: Sequence[str], last: int) -> Iterator[Event]:
        """What belongs to the whole, then every arm in its order; ``last`` is the last stretch."""
        yield from self.whole
        for arm in sorted(self.attempts, key=lambda arm: _place(arm, order)):
            tries = self.attempts[arm]
            ran = [number for number, events in tries.items() if _is_attempt(events)]
            if arm not in ARMS:  # a stage of the preparation: only the last one stands
                yield from tries.get(last, ())
                continue
            chosen = max(ran, default=max(tries))
            yield from tries[chosen]
            # Differences are looked at behind all arms, so perhaps in a later stretch.
            for number in sorted(tries):
                if number > chosen:
                    yield from (e for e in tries[number] if isinstance(e, TokenMargin))

    def _is_told(self, event: Event) -> bool:
        if isinstance(event, _ONCE):
            return any(isinstance(other, type(event)) for other in self.whole)
        if isinstance(event, Notice):
            return any(isinstance(e, Notice) and e.text == event.text for e in self.whole)
        return False


def _is_attempt(events: Iterable[Event]) -> bool:
    return any(isinstance(event, ArmStarted | ArmSkipped | ArmFailed) for event in events)


def _place(arm: str, order: Sequence[str]) -> int:
    return order.index(arm) if arm in order else len(order)


def _order(started: Event) -> Sequence[str]:
    """The arms of an ordinary run in the order in which they run; none if it cannot be told."""
    assert isinstance(started, RunStarted)
    try:
        return expand_arms(started.config["run"]["arms"])
    except (KeyError, TypeError, UserError):
        return ()


def _parts(events: Sequence[Event]) -> Iterator[list[Event]]:
    """The stretches between breaks; each but the first begins with its RunResumed."""
    part: list[Event] = []
    for event in events:
        if isinstance(event, RunResumed):
            yield part
            part = []
        part.append(event)
    yield part


def _on_one_clock(parts: Iterable[list[Event]]) -> Iterator[list[Event]]:
    """The monotonic clock begins anew with the machine: move later stretches behind the first.

    The wall clock says how far; where it was set back, they follow at once.
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
            moved = [_later(event, wanted - first.t_ns) for event in part]
        end = max([end, *(event.t_ns for event in moved)])
        yield moved


def _later(event: Event, by_ns: int) -> Event:
    update: dict[str, Any] = {"t_ns": event.t_ns + by_ns}
    if isinstance(event, (Step, SecondPartRun)):
        update["started_ns"] = event.started_ns + by_ns
    return event.model_copy(update=update)
