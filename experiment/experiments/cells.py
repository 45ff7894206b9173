"""A cell of an experiment: one setting of the varied parameters, and the events of its runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from experiment.config.schema import Config
from experiment.events import (
    ArmFinished,
    CacheMoved,
    CellStarted,
    EngineStep,
    Event,
    HolesSeen,
    Keyframe,
    LookupTimed,
    Notice,
    PrefixCacheUsed,
    RepeatFinished,
    RequestFinished,
    RunStarted,
    Step,
    TokenMapping,
    TurnStarted,
)
from experiment.record.log import Record
from experiment.text.messages import Message

T = TypeVar("T")
_BUSY_ARM = "experiments.note.busy_arm"
# Events of a single repeat; the others occur once per arm.
_REPEATED = (
    CacheMoved, EngineStep, HolesSeen, Keyframe, LookupTimed, PrefixCacheUsed, RequestFinished,
    Step, TokenMapping,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cell:
    """One setting of the varied parameters.

    Attributes:
        values: names the cell: each key is a name of ``experiments.axis``, a text value one of
            ``experiments.value`` or the user's.
        overrides: config values of this cell, by dotted key.
        arms: arms that run in it; None: all of the run.
        absent: arms of the run that cannot run here, and why.
    """

    values: Mapping[str, int | float | str]
    overrides: Mapping[str, Any]
    arms: tuple[str, ...] | None = None
    absent: Mapping[str, Message] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CellEvents:
    """The events of a cell, after those of the whole run. ``config`` is the cell's config."""

    started: CellStarted
    config: Config
    before: tuple[Event, ...]
    events: tuple[Event, ...]
    record: Record

    def view(self, repeat: int) -> Record:
        """The cell as an ordinary run with this repeat only."""
        seen: dict[str, int] = defaultdict(int)
        times = {e.arm: e.generate_s for e in self._repeats() if e.repeat == repeat}
        mine = self.config.model_dump(mode="json")
        chosen: list[Event] = [
            event.model_copy(update={"config": mine}) if isinstance(event, RunStarted) else event
            for event in self.before
        ]
        for event in self.events:
            if isinstance(event, RepeatFinished):
                seen[event.arm] += 1
            elif isinstance(event, ArmFinished):
                seconds = times.get(event.arm, event.generate_s)
                chosen.append(event.model_copy(update={"generate_s": seconds}))
            elif is_old_notice(event):
                continue  # the experiment reports it for all arms together
            elif not isinstance(event, _REPEATED) or seen[event.arm] == repeat:
                chosen.append(event)
        return replace(self.record, events=tuple(chosen), summary={}, is_drawn=False)

    def views(self) -> list[Record]:
        """:meth:`view` of the warm-up and of each repeat."""
        most = max((event.repeat for event in self._repeats()), default=0)
        return [self.view(repeat) for repeat in range(most + 1)]

    def first(self, kind: type[T]) -> T | None:
        """The cell's first event of a type."""
        return next((event for event in self.events if isinstance(event, kind)), None)

    def repeats(self, arm: str) -> list[RepeatFinished]:
        """Finished repeats of an arm, the warm-up first."""
        return [event for event in self._repeats() if event.arm == arm]

    def group(self, arm: str) -> int | None:
        """Group of an interleaved arm; None if its repeats ran consecutively."""
        groups = {e.group for e in self.events if isinstance(e, TurnStarted) and e.arm == arm}
        return groups.pop() if len(groups) == 1 else None

    def _repeats(self) -> Iterator[RepeatFinished]:
        return (event for event in self.events if isinstance(event, RepeatFinished))


def is_old_notice(event: Event) -> bool:
    """Whether it is an older log's notice of background load at an arm's start."""
    return isinstance(event, Notice) and event.text.key == _BUSY_ARM
