"""What paging alone does under load: latency by the wall clock, counts on the clock of steps."""

from __future__ import annotations

from experiment.experiments.found import (
    Found,
    detail,
    followed,
    listed,
    over,
    timed,
    untested,
)
from experiment.experiments.results import CellResult, Finding

_NAME = "serving"


def paging_alone(found: Found, cells: list[CellResult]) -> Finding:
    """At the highest rate, blocks against slabs of the same engine, and what is counted of both.

    ``cells`` are those by the wall clock. Where times decide nothing, the counts of that rate stand
    in their place.
    """
    seen = [
        (cell, faster)
        for cell in cells
        if (faster := found.ratio(cell, "latency_s", "slabs", "paged")) is not None
    ]
    if not seen:
        return untested("paging")
    cell, faster = seen[-1]
    factors = [(float(each.values["rate"]), one) for each, one in seen]
    rate = cell.values["rate"]
    finding = timed(_NAME, "paging", faster, {"rate": rate}, over(factors))
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
