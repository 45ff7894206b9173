"""Assign the events of a log to the cells of an experiment.

    cell 0 │ arm a: warm-up │ cell 1 │ arm a: warm-up │ turn of cell 0 │ … │ turn of cell 1 │ …

A cell begins with :class:`CellStarted`; with interleaved arms the log returns to it.
"""

from __future__ import annotations

from experiment.events import CellStarted, Event, TurnStarted


def cell_at(event: Event, before: int | None) -> int | None:
    """Cell index of an event and of those that follow it; None: no cell.

    Args:
        before: cell index of the previous event.
    """
    if isinstance(event, CellStarted):
        return event.index
    return event.cell if isinstance(event, TurnStarted) else before
