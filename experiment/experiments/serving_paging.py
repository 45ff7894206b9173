"""What paging alone does under load: latency and first token by the wall clock, counts in steps.

Who waits for memory has its first token later, which latency shows less, since most of it is
generating; and who waits most is not seen in a mean.
"""

from __future__ import annotations

from typing import Any

from experiment.analysis.experiment_results import CellResult, Compared, Finding
from experiment.experiments.findings import between, factors, note, ratios, timed, untested
from experiment.experiments.found import Found
from experiment.experiments.serving_limits import sustains
from experiment.text.messages import Message

_NAME, _AXIS = "serving", "rate"
_ARMS = ("slabs", "paged")


def paging_alone(found: Found, cells: list[CellResult]) -> Finding:
    """At the highest rate, blocks against slabs of the same engine, and what is counted of both.

    ``cells`` are those by the wall clock; counts are of those on the clock of steps.
    """
    on_steps = [cell for cell in found.cells if cell.values["clock"] == "steps"]
    steps = [between(found, cell, "steps", *_ARMS, _AXIS) for cell in on_steps]
    return _sooner(found, cells, "paging", "latency_s", *steps) or untested("paging")


def first_tokens(found: Found, cells: list[CellResult]) -> list[Finding]:
    """The same of the time to the first token: its mean, and its 95th percentile if it is known."""
    mean = _sooner(found, cells, "first_token", "first_token_s")
    if mean is None:
        return [untested("first_token")]
    late = _sooner(found, cells, "first_token_p95", "first_token_p95_s")
    return [mean] if late is None else [mean, late]


def _sooner(
    found: Found, cells: list[CellResult], name: str, figure: str, *beside: Compared | None
) -> Finding | None:
    """At the highest rate that has the figure, if any has."""
    seen = ratios(found, cells, figure, *_ARMS)
    if not seen:
        return None
    cell = seen[-1][0]
    slabs, paged = ((cell, arm, figure) for arm in _ARMS)
    more: dict[str, Any] = {"notes": [_queue(found, cells, cell)]}
    over = factors(seen, figure, *_ARMS, _AXIS)
    return timed(found, name, slabs, paged, over, *beside, axes=[_AXIS], **more)


def _queue(found: Found, cells: list[CellResult], cell: CellResult) -> Message | None:
    """Where slabs are saturated, how far they are behind is a matter of how many requests came."""
    kept_up = sustains(found, cells, "slabs", float(cell.values["rate"]))
    return note(_NAME, "queue", requests=cell.requests) if kept_up is False else None
