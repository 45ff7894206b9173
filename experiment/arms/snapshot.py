"""State of tables and tensors after a step, taken before it changes again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from experiment.events import Keyframe
from experiment.events.pace import KEYFRAME_EVERY


class StepSnapshot(NamedTuple):
    """Slots counted from the tensors (None: not counted), and a keyframe if one is due."""

    written_slots: int | None = None
    keyframe: Keyframe | None = None


def keyframe_of(
    arm: str,
    step: int,
    tables: Callable[[], Mapping[int, Sequence[int]]],
    written: Callable[[], Mapping[int, int]],
) -> Keyframe | None:
    """Take a keyframe every :data:`KEYFRAME_EVERY` steps, otherwise None.

    Args:
        tables: returns the block table of each request.
        written: returns the number of written slots of each request.
    """
    if step % KEYFRAME_EVERY:
        return None
    pairs = tables().items()
    found = {request: list(table) for request, table in pairs}
    return Keyframe(arm=arm, step=step, tables=found, written=dict(written()))
