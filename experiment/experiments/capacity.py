"""One KV budget, more and more requests at a time: who holds how many, and where paging gives in.

Each request is (prompt, new) of ``options.lengths`` in turn, so that what a slab keeps for nothing
is what these lengths leave of the maximum one.
"""

from __future__ import annotations

from typing import Any

from experiment.config import Config
from experiment.experiments.base import Cell, Experiment
from experiment.experiments.found import Found, fact, judged, untested
from experiment.experiments.results import CellResult, Finding

_NAME = "capacity"
# More requests at a time, or a faster run, by less than this is called none.
_MORE = 1.05
_FASTER = 1.1


def _cells(config: Config) -> list[Cell]:
    lengths: Any = config.experiment.options["lengths"]
    cells = []
    for offered in config.experiment.values:
        count = int(offered)
        requests = [lengths[index % len(lengths)] for index in range(count)]
        cells.append(Cell({"requests": count}, {"workload.lengths": requests}))
    return cells


def _findings(found: Found) -> list[Finding]:
    return [_at_once(found), _throughput(found), _preempting(found)]


def _at_once(found: Found) -> Finding:
    """At the most requests: how many ran at once, in blocks and in slabs of the same engine."""
    cell = _last(found)
    if cell is None:
        return untested("at_once")
    slabs, paged = (found.value(cell, arm, "running_peak") for arm in ("slabs", "paged"))
    if not slabs or not paged:
        return untested("at_once")
    figures = {"paged": paged, "slabs": slabs, "factor": paged / slabs}
    offered = {"budget": cell.budget_bytes, "requests": cell.requests}
    length = cell.max_length
    shown = paged > slabs * _MORE
    return judged(_NAME, "at_once", shown, max_length=length, **figures, **offered)


def _throughput(found: Found) -> Finding:
    """Paging alone: the same engine with slabs and with blocks."""
    cell = _last(found)
    faster = found.ratio(cell, "tokens_per_s", "paged", "slabs") if cell else None
    if cell is None or faster is None:
        return untested("throughput")
    rates = {arm: found.value(cell, arm, "tokens_per_s") for arm in ("paged", "slabs")}
    shown = faster.clear and faster.factor > _FASTER
    figures = {"factor": faster.factor, "requests": cell.requests}
    return judged(_NAME, "throughput", shown, **figures, **rates)


def _preempting(found: Found) -> Finding:
    """From how many requests on the paged arm takes blocks away from running ones."""
    counts = [(c.requests, found.value(c, "paged", "preemptions")) for c in found.cells]
    known = [(requests, count) for requests, count in counts if count is not None]
    if not known:
        return untested("preempting")
    first = next(((requests, count) for requests, count in known if count), None)
    if first is None:
        return fact(_NAME, "preempting", "never", requests=known[-1][0])
    return fact(_NAME, "preempting", "from", requests=first[0], count=first[1])


def _last(found: Found) -> CellResult | None:
    return next(reversed(list(found.with_arms("slabs", "paged"))), None)


CAPACITY = Experiment(
    name=_NAME,
    cells=_cells,
    figures=(
        "fits", "running_peak", "running_mean", "waste", "preemptions", "recomputed", "steps",
        "tokens_per_s",
    ),
    charts=("running_peak", "tokens_per_s", "preemptions"),
    findings=_findings,
)  # fmt: skip
