"""Effect of paging alone under load: latency and TTFT by the wall clock, counts in steps.

Waiting for memory delays the first token. Latency, which is mostly generation, shows it less, and a
mean does not show the longest waits.
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
    """Compare blocks with slabs of the same engine at the highest rate.

    ``cells``: on the wall clock; counts come from those on the clock of steps.
    """
    on_steps = [cell for cell in found.cells if cell.values["clock"] == "steps"]
    steps = [between(found, cell, "steps", *_ARMS, _AXIS) for cell in on_steps]
    return _sooner(found, cells, "paging", "latency_s", *steps) or untested("paging")


def first_tokens(found: Found, cells: list[CellResult]) -> list[Finding]:
    """The same for TTFT: its mean, and its 95th percentile if known."""
    mean = _sooner(found, cells, "first_token", "first_token_s")
    if mean is None:
        return [untested("first_token")]
    late = _sooner(found, cells, "first_token_p95", "first_token_p95_s")
    return [mean] if late is None else [mean, late]


def _sooner(
    found: Found, cells: list[CellResult], name: str, figure: str, *others: Compared | None
) -> Finding | None:
    """Compare at the highest rate that has the figure; None if none has."""
    seen = ratios(found, cells, figure, *_ARMS)
    if not seen:
        return None
    cell = seen[-1][0]
    slabs, paged = ((cell, arm, figure) for arm in _ARMS)
    more: dict[str, Any] = {"notes": [_queue(found, cells, cell)]}
    over = factors(seen, figure, *_ARMS, _AXIS)
    return timed(found, name, slabs, paged, over, *others, axes=[_AXIS], **more)


def _queue(found: Found, cells: list[CellResult], cell: CellResult) -> Message | None:
    """A note if slabs are saturated: the delay then depends on the number of requests."""
    kept_up = sustains(found, cells, "slabs", float(cell.values["rate"]))
    return note(_NAME, "queue", requests=cell.requests) if kept_up is False else None
