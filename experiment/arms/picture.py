"""What stands in tables and tensors behind a step, taken before they change again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from experiment.events import Keyframe
from experiment.events.pace import KEYFRAME_EVERY


class Picture(NamedTuple):
    """``written_slots`` as counted from the tensors; None where nobody counted."""

    written_slots: int | None = None
    keyframe: Keyframe | None = None


def keyframe_of(
    arm: str,
    step: int,
    tables: Callable[[], Mapping[int, Sequence[int]]],
    written: Callable[[], Mapping[int, int]],
) -> Keyframe | None:
    """A whole picture where it is its turn, every :data:`KEYFRAME_EVERY` steps.

    Args:
        tables: the block table of each request.
        written: the slots of each that are written.
    """
    if step % KEYFRAME_EVERY:
        return None
    pairs = tables().items()
    found = {request: list(table) for request, table in pairs}
    return Keyframe(arm=arm, step=step, tables=found, written=dict(written()))
