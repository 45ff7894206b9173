"""Other programs that were busy as an arm began, by a look around before each.

    look   arm a: warm-up, repeats     quiet: 100, 101, 102
    look   arm b: warm-up, repeats     busy:   60,  61,  62     no verdict on a against b

Repeats of an arm follow each other within one process: what slows all of them alike, none shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from experiment.events import ArmStarted, CellStarted, Event, Notice
from experiment.messages import Message, arm_message, message

if TYPE_CHECKING:
    from experiment.experiments.measured import CellEvents

_ARM = "experiments.note.busy_arm"


def busy_notice(cell: CellStarted, arm: str, cores: float) -> Notice:
    """What is written down before an arm begins, where others keep so many cores busy."""
    name = arm_message(arm).model_dump()
    return Notice(arm=arm, text=message(_ARM, cell=cell.index + 1, arm=name, cores=cores))


def is_busy(event: Event) -> bool:
    """Whether it is such a notice; of a run they are told as one."""
    return isinstance(event, Notice) and event.text.key == _ARM


def others_cores(events: Iterable[Event]) -> dict[str, float]:
    """Cores that other programs kept busy as an arm of a cell began, by arm.

    Of an arm that is not there nobody saw any.
    """
    return {
        event.arm: event.text.params["cores"]
        for event in events
        if isinstance(event, Notice) and is_busy(event) and event.arm is not None
    }


def busy_note(cells: Sequence[CellEvents]) -> list[Message]:
    """All of them as one note, if there are any."""
    seen = [cores for cell in cells for cores in others_cores(cell.events).values()]
    if not seen:
        return []
    began = sum(isinstance(event, ArmStarted) for cell in cells for event in cell.events)
    return [message("experiments.note.busy", n=len(seen), of=began, cores=max(seen))]
