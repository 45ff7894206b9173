"""What paging alone does under load: latency and first token by the wall clock, counts in steps.

Who waits for memory has its first token later, which latency shows less, since most of it is
generating; and who waits most is not seen in a mean.
"""

from __future__ import annotations

from experiment.analysis.experiment_results import CellResult, Finding
from experiment.experiments.found import (
    Faster,
    Found,
    detail,
    followed,
    listed,
    over,
    sentences,
    timed,
    untested,
)
from experiment.experiments.serving_limits import sustains
from experiment.text.messages import Message

_NAME = "serving"


def paging_alone(found: Found, cells: list[CellResult]) -> Finding:
    """At the highest rate, blocks against slabs of the same engine, and what is counted of both.

    ``cells`` are those by the wall clock. Where times decide nothing, the counts of that rate stand
    in their place.
    """
    seen = _seen(found, cells, "latency_s")
    if not seen:
        return untested("paging")
    cell, faster = seen[-1]
    factors = [(float(each.values["rate"]), one) for each, one in seen]
    rate = cell.values["rate"]
    finding = timed(
        _NAME, "paging", faster, {"rate": rate}, _queue(found, cells, cell), over(factors)
    )
    counts = _counted(found)
    at = next((told for told in counts if told["rate"] == rate), None)
    if faster.lacking and at is not None:
        why = detail(_NAME, f"counted_{faster.lacking}").model_dump()
        text = detail(_NAME, "paging_counted", why=why, **at)
        finding = finding.model_copy(update={"text": text})
        counts.remove(at)
    if not counts:
        return finding
    said = listed(detail(_NAME, "counted_at", **told).model_dump() for told in counts)
    return followed(finding, detail(_NAME, "counted", rates=said))


def first_tokens(found: Found, cells: list[CellResult]) -> list[Finding]:
    """The same of the time to the first token: its mean, and its 95th percentile if it is known."""
    if not _seen(found, cells, "first_token_s"):
        return [untested("first_token")]
    names = ("first_token", "first_token_p95")
    return [told for name in names if (told := _first_token(found, cells, name)) is not None]


def _first_token(found: Found, cells: list[CellResult], name: str) -> Finding | None:
    """At the highest rate that has the figure, if any has."""
    figure = f"{name}_s"
    seen = _seen(found, cells, figure)
    if not seen:
        return None
    cell, faster = seen[-1]
    factors = [(float(each.values["rate"]), one) for each, one in seen]
    of_both = {arm: found.value(cell, arm, figure) for arm in ("slabs", "paged")}
    told = {"rate": cell.values["rate"], **of_both}
    return timed(_NAME, name, faster, told, _queue(found, cells, cell), over(factors))


def _queue(found: Found, cells: list[CellResult], cell: CellResult) -> Message | None:
    """Where slabs are saturated, how far they are behind is a matter of how many requests came.

    Where blocks bear the rate their latency stays, while that of slabs grows with every request;
    where they are saturated as well both grow alike, and nobody knows where it is open.
    """
    rate = float(cell.values["rate"])
    slabs, paged = (sustains(found, cells, arm, rate) for arm in ("slabs", "paged"))
    if slabs is not False:
        return None
    grows = detail(_NAME, "queue_grows", requests=cell.requests)
    if paged is None:
        return grows
    return sentences([grows, detail(_NAME, "queue_larger" if paged else "queue_both")])


def _seen(found: Found, cells: list[CellResult], figure: str) -> list[tuple[CellResult, Faster]]:
    """Where both arms have it: slabs over blocks."""
    return [
        (cell, faster)
        for cell in cells
        if (faster := found.ratio(cell, figure, "slabs", "paged")) is not None
    ]


def _counted(found: Found) -> list[dict[str, object]]:
    """Steps of both arms, and requests at a time at the most, at each rate in steps."""
    counts: list[dict[str, object]] = []
    for cell in found.cells:
        if cell.values["clock"] != "steps":
            continue
        told: dict[str, object] = {
            f"{arm}_{name}": found.value(cell, arm, figure)
            for arm in ("slabs", "paged")
            for name, figure in (("steps", "steps"), ("peak", "running_peak"))
        }
        if None not in told.values():
            counts.append({"rate": cell.values["rate"], **told})
    return counts
