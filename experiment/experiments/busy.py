"""Other programs that were busy: a look around before an arm begins, and all the while it runs.

    look   arm a: warm-up, repeats     quiet: 100, 101, 102
    look   arm b: warm-up, repeats     busy:   60,  61,  62     no verdict on a against b

Repeats of an arm follow each other within one process: what slows all of them alike, none shows.
Who comes in the middle is not there at the look, so an arm whose measured repeats were not left
alone counts as disturbed, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING

from experiment.events import (
    ArmStarted,
    CellStarted,
    Event,
    Notice,
    RepeatFinished,
    Step,
    Usage,
)
from experiment.messages import Message, arm_message, message
from experiment.noise import BUSY_CORES

if TYPE_CHECKING:
    from experiment.experiments.measured import CellEvents

_ARM = "experiments.note.busy_arm"
# A busy moment is no busy machine: a repeat of fewer samples, of 250 ms each, is not judged alone.
_SAMPLES = 4


def busy_notice(cell: CellStarted, arm: str, cores: float) -> Notice:
    """What is written down before an arm begins, where others keep so many cores busy."""
    name = arm_message(arm).model_dump()
    return Notice(arm=arm, text=message(_ARM, cell=cell.index + 1, arm=name, cores=cores))


def is_busy(event: Event) -> bool:
    """Whether it is such a notice; of a run they are told as one."""
    return isinstance(event, Notice) and event.text.key == _ARM


def others_cores(events: Iterable[Event]) -> dict[str, float]:
    """Cores that other programs kept busy as an arm of a cell began or while it ran, by arm.

    The larger of the two. Of an arm that is not there nobody saw any.
    """
    seen: dict[str, float] = {}
    ran: defaultdict[str, _Ran] = defaultdict(_Ran)
    for event in events:
        if isinstance(event, Notice) and is_busy(event) and event.arm is not None:
            seen[event.arm] = event.text.params["cores"]
        elif isinstance(event, Step | Usage | RepeatFinished):
            ran[event.arm].take(event)
    for arm, each in ran.items():
        cores = each.others_cores()
        if cores is not None and cores > BUSY_CORES:
            seen[arm] = max(cores, seen.get(arm, 0.0))
    return seen


@dataclass(slots=True)
class _Ran:
    """What an arm's repeats are told apart by: in ``spans``, of those measured, nanoseconds."""

    samples: list[tuple[int, float]] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    _steps: list[Step] = field(default_factory=list)

    def take(self, event: Step | Usage | RepeatFinished) -> None:
        """The next of its events."""
        if isinstance(event, Step):
            self._steps.append(event)
        elif isinstance(event, RepeatFinished):
            if self._steps and not event.warm_up:
                self.spans.append((self._steps[0].started_ns, self._steps[-1].t_ns))
            self._steps = []
        elif event.others_cores is not None:
            self.samples.append((event.t_ns, event.others_cores))

    def others_cores(self) -> float | None:
        """The most of the means over each repeat that is long enough, and over all together.

        None where nobody knows.
        """
        found = [
            [cores for t_ns, cores in self.samples if begin <= t_ns <= end]
            for begin, end in self.spans
        ]
        together = [cores for each in found for cores in each]
        alone = [each for each in found if len(each) >= _SAMPLES]
        return max(map(fmean, [*alone, together])) if together else None


def busy_note(cells: Sequence[CellEvents]) -> list[Message]:
    """All of them as one note, if there are any."""
    seen = [cores for cell in cells for cores in others_cores(cell.events).values()]
    if not seen:
        return []
    began = sum(isinstance(event, ArmStarted) for cell in cells for event in cell.events)
    return [message("experiments.note.busy", n=len(seen), of=began, cores=max(seen))]
