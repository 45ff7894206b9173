"""One KV budget, more and more requests at a time: who holds how many, and where paging gives in.

How many ran at a time is a mean over the steps: at its peak paging holds requests that it has to
take blocks away from a little later.

Each request is (prompt, new) of ``options.lengths`` in turn, so that what a slab keeps for nothing
is what these lengths leave of the maximum one.
"""

from __future__ import annotations

from typing import Any

from experiment.analysis.experiment_results import CellResult, Finding
from experiment.config.schema import Config
from experiment.experiments.alike import nothing_gained, place
from experiment.experiments.base import Experiment, in_turn
from experiment.experiments.cells import Cell
from experiment.experiments.found import (
    Found,
    detail,
    fact,
    followed,
    in_steps,
    judged,
    over,
    speed,
    timed,
    took_longer,
    untested,
)
from experiment.experiments.prediction import last_that
from experiment.text.messages import Message

_NAME = "capacity"
# More requests at a time, or a faster run, by less than this is called none.
_MORE = 1.05
_FASTER = 1.1


def _cells(config: Config) -> list[Cell]:
    lengths: Any = config.experiment.options["lengths"]
    cells = []
    for offered in config.experiment.values:
        count = int(offered)
        overrides = {"workload.lengths": in_turn(lengths, count)}
        cells.append(Cell({"requests": count}, overrides))
    return cells


def _findings(found: Found) -> list[Finding]:
    return [_at_once(found), _throughput(found), _preempting(found)]


def _at_once(found: Found) -> Finding:
    """At the most requests: how many ran at once, in blocks and in slabs of the same engine."""
    cell = _last(found)
    if cell is None:
        return untested("at_once")
    factors = [
        (each.requests, more) for each in found.cells if (more := _more(found, each)) is not None
    ]
    more = _more(found, cell)
    if more is None:
        return untested("at_once")
    faster = found.ratio(cell, "tokens_per_s", "paged", "slabs")
    figures = {
        f"{arm}_running_mean": found.value(cell, arm, "running_mean") for arm in ("slabs", "paged")
    }
    counts = {name: found.value(cell, "paged", name) for name in ("running_peak", "preemptions")}
    held = {f"{arm}_fits": found.value(cell, arm, "fits") for arm in ("slabs", "paged")}
    told = {"budget": cell.budget_bytes, "requests": cell.requests, "max_length": cell.max_length}
    shown = more > _MORE and not took_longer(found, cell, faster)
    arithmetic = detail(_NAME, "at_once_more", **counts, **held)
    steps = in_steps(found, cell, faster)
    below = (arithmetic, _growing(found, cell), speed(faster), steps, over(factors))
    return judged(_NAME, "at_once", shown, *below, factor=more, **figures, **told)


def _growing(found: Found, cell: CellResult) -> Message | None:
    """What a growing cache has room for; its arm runs one request at a time in any case."""
    fits = found.value(cell, "contiguous.growing", "fits")
    return None if fits is None else detail(_NAME, "at_once_growing", fits=fits)


def _more(found: Found, cell: CellResult) -> float | None:
    """Requests at a time in blocks over those in slabs, both on average over the steps."""
    slabs, paged = (found.value(cell, arm, "running_mean") for arm in ("slabs", "paged"))
    return paged / slabs if slabs and paged else None


def _throughput(found: Found) -> Finding:
    """Paging alone: the same engine with slabs and with blocks, and where it gains nothing."""
    cell = _last(found)
    faster = found.ratio(cell, "tokens_per_s", "paged", "slabs") if cell else None
    if cell is None or faster is None:
        return untested("throughput")
    factors = [
        (each.requests, one)
        for each in found.cells
        if (one := found.ratio(each, "tokens_per_s", "paged", "slabs")) is not None
    ]
    rates = {arm: found.value(cell, arm, "tokens_per_s") for arm in ("paged", "slabs")}
    shown = faster.clear and faster.factor > _FASTER
    told = {"requests": cell.requests, **rates}
    finding = timed(_NAME, "throughput", faster, told, over(factors), shown=shown)
    places = [(each, place("requests", n=each.requests)) for each in found.cells]
    return followed(finding, nothing_gained(found, places, "tokens_per_s"))


def _preempting(found: Found) -> Finding:
    """From how many requests on the paged arm takes blocks away from running ones.

    The numbers that were tried bracket it, and kvsim says where between them it is.
    """
    counts = [(cell, found.value(cell, "paged", "preemptions")) for cell in found.cells]
    known = [(cell, count) for cell, count in counts if count is not None]
    if not known:
        return untested("preempting")
    place = next((place for place, (_, count) in enumerate(known) if count), None)
    if place is None:
        return fact(_NAME, "preempting", "never", requests=known[-1][0].requests)
    at, count = known[place]
    below = known[place - 1][0].requests if place else None
    more = None if below is None else detail(_NAME, "preempting_below", requests=below)
    since = _foretold(found, at, int(count), below)
    return fact(_NAME, "preempting", "from", more, since, requests=at.requests, count=count)


def _foretold(found: Found, cell: CellResult, count: int, below: int | None) -> Message | None:
    """From how many on kvsim says so, where it counts what was measured; None: it says nothing."""
    said: dict[int, int | None] = {0: 0, cell.requests: _simulated(found, cell, cell.requests)}
    if said[cell.requests] is None:
        return None

    def calm(requests: int) -> bool | None:
        if requests not in said:
            said[requests] = _simulated(found, cell, requests)
        preempted = said[requests]
        return None if preempted is None else preempted == 0

    last = last_that(calm, below or 0, cell.requests)
    if last is None or said[cell.requests] != count:
        return detail(_NAME, "preempting_apart")
    return detail(_NAME, "preempting_foretold", requests=last + 1)


def _simulated(found: Found, cell: CellResult, requests: int) -> int | None:
    """Preemptions of so many requests in the cell's budget."""
    lengths: Any = found.config.experiment.options["lengths"]
    if found.simulate is None:
        return None
    said = found.simulate(cell, "paged", {"workload.lengths": in_turn(lengths, requests)})
    return None if isinstance(said, Message) else said.preemptions.total


def _last(found: Found) -> CellResult | None:
    return next(reversed(list(found.with_arms("slabs", "paged"))), None)


CAPACITY = Experiment(
    name=_NAME,
    cells=_cells,
    figures=(
        "fits", "running_mean", "running_peak", "waste", "reserved_swing", "preemptions",
        "recomputed", "steps", "tokens_per_s",
    ),
    charts=("running_mean", "tokens_per_s", "preemptions"),
    findings=_findings,
    options=("lengths",),
    without={"contiguous.sequential": "one_at_a_time"},
)  # fmt: skip
