"""Which cell of an experiment each line of a log is of.

    cell 0 │ arm a: warm-up │ cell 1 │ arm a: warm-up │ turn of cell 0 │ … │ turn of cell 1 │ …

A cell begins with :class:`CellStarted`; where arms take turns, the log comes back to it.
"""

from __future__ import annotations

from experiment.events import CellStarted, Event, TurnStarted


def cell_at(event: Event, before: int | None) -> int | None:
    """The index of the cell that an event is of, and what follows it; None: of no cell.

    Args:
        before: that of the event before it.
    """
    if isinstance(event, CellStarted):
        return event.index
    return event.cell if isinstance(event, TurnStarted) else before
