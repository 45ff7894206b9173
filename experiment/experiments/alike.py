"""Cells in which blocks let no more requests run than slabs."""

from __future__ import annotations

from collections.abc import Iterable
from math import isclose

from experiment.analysis.experiment_results import CellResult
from experiment.analysis.finding_text import listed
from experiment.experiments.found import Found
from experiment.experiments.labels import cell_place
from experiment.text.messages import Message, message

# Which of them an experiment has; means tell more than peaks.
_AT_ONCE = ("running_mean", "running_peak")


def no_more(found: Found, cell: CellResult) -> bool:
    """Whether as many ran at once in blocks as in slabs, in as many steps; unknown is no."""
    if not _equal(found, cell, "steps"):
        return False
    known = [name for name in _AT_ONCE if found.value(cell, "paged", name) is not None]
    return bool(known) and _equal(found, cell, known[0])


def _equal(found: Found, cell: CellResult, name: str) -> bool:
    slabs, paged = (found.value(cell, arm, name) for arm in ("slabs", "paged"))
    return slabs is not None and paged is not None and isclose(slabs, paged)


def no_more_run(found: Found, cells: Iterable[CellResult], axis: str) -> Message | None:
    """A note on the cells in which paging lets no more run; None: there are none."""
    places = [cell_place(cell, [axis]) for cell in cells if no_more(found, cell)]
    said = listed(place for place in places if place is not None)
    return message("experiments.alike", cells=said) if said else None
