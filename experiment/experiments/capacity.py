"""One KV budget, increasing concurrency: requests that each arm holds, and where paging preempts.

Concurrency is the mean over the steps: the peak includes requests that are preempted soon after.

Requests cycle through the (prompt, new) of ``options.lengths``, so a slab wastes the difference
between these lengths and the maximum length.
"""

from __future__ import annotations

from typing import Any

from experiment.analysis.experiment_results import CellResult, Finding
from experiment.config.schema import Config
from experiment.experiments.base import Experiment, in_turn, varied
from experiment.experiments.findings import (
    BOTH,
    between,
    fact,
    factors,
    more_at_once,
    note,
    ratios,
    series,
    tally,
    timed,
)
from experiment.experiments.found import Found
from experiment.experiments.prediction import last_that
from experiment.text.messages import Message

_NAME, _AXIS = "capacity", "requests"
# Smaller factors of speed count as no gain.
_FASTER = 1.1


def _overrides(config: Config, requests: int) -> dict[str, Any]:
    lengths: Any = config.experiment.options["lengths"]
    return {"workload.lengths": in_turn(lengths, requests)}


def _findings(found: Found) -> list[Finding]:
    return [_at_once(found), _throughput(found), _preempting(found)]


def _at_once(found: Found) -> Finding:
    """Concurrency at the most requests, with blocks and with slabs of the same engine."""
    cell = found.last("slabs", "paged")
    row = between(found, cell, "running_mean", *BOTH)
    return more_at_once(
        found, "at_once", cell, row,
        tally(found, cell, "paged", "running_peak", "preemptions", "fits"),
        tally(found, cell, "slabs", "fits"),
        tally(found, cell, "contiguous.growing", "fits"),
        factors(ratios(found, found.cells, "running_mean", *BOTH), "running_mean", *BOTH, _AXIS),
    )  # fmt: skip


def _throughput(found: Found) -> Finding:
    """Gain of paging alone: the same engine with slabs and with blocks."""
    cell = found.last("slabs", "paged")
    paged, slabs = ((cell, arm, "tokens_per_s") for arm in BOTH)
    seen = ratios(found, found.cells, "tokens_per_s", *BOTH)
    over = factors(seen, "tokens_per_s", *BOTH, _AXIS)
    return timed(found, "throughput", paged, slabs, over, least=_FASTER)


def _preempting(found: Found) -> Finding:
    """The number of requests from which the paged arm preempts.

    The tested numbers bracket it; kvsim predicts the exact one.
    """
    cells = [c for c in found.cells if found.value(c, "paged", "preemptions") is not None]
    counts = [int(found.value(cell, "paged", "preemptions") or 0) for cell in cells]
    row = series(found, cells, "preemptions", "paged", _AXIS)
    first = next((place for place, count in enumerate(counts) if count), None)
    if first is None:
        return fact("preempting", row)
    at, below = cells[first], cells[first - 1].requests if first else None
    row = row.model_copy(update={"kind": "from", "estimate": at.requests})
    return fact("preempting", row, notes=[_predicted(found, at, counts[first], below)])


def _predicted(found: Found, cell: CellResult, count: int, below: int | None) -> Message | None:
    """kvsim's number, if its counts equal the measured ones; None without a prediction."""
    known: dict[int, int | None] = {0: 0, cell.requests: _simulated(found, cell, cell.requests)}
    if known[cell.requests] is None:
        return None

    def calm(requests: int) -> bool | None:
        if requests not in known:
            known[requests] = _simulated(found, cell, requests)
        preempted = known[requests]
        return None if preempted is None else preempted == 0

    last = last_that(calm, below or 0, cell.requests)
    if last is None or known[cell.requests] != count:
        return None
    return note(_NAME, "preempting_foretold", requests=last + 1)


def _simulated(found: Found, cell: CellResult, requests: int) -> int | None:
    """Predicted preemptions of this number of ``requests`` in the cell's budget."""
    if found.simulate is None:
        return None
    known = found.simulate(cell, "paged", _overrides(found.config, requests))
    return None if isinstance(known, Message) else known.preemptions.total


CAPACITY = Experiment(
    name=_NAME,
    cells=varied(_AXIS, _overrides),
    figures=(
        "fits", "running_mean", "running_peak", "waste", "reserved_swing", "preemptions",
        "recomputed", "steps", "tokens_per_s",
    ),
    charts=("running_mean", "tokens_per_s", "preemptions"),
    findings=_findings,
    options=("lengths",),
    without={"contiguous.sequential": "one_at_a_time"},
)  # fmt: skip
