"""External fragmentation of a contiguous arena with requests of different lengths.

One cell. The paged arm serves the requests; an arena of the same bytes on the device
(:mod:`experiment.engine.arena`) allocates each of them contiguously, with its exact length.
"""

from __future__ import annotations

from typing import Any

from experiment.analysis.experiment_results import CellResult, Compared, Finding
from experiment.config.schema import Config
from experiment.experiments.base import Experiment, contiguous, in_turn, other_engines, varied
from experiment.experiments.findings import (
    MORE,
    counted,
    fact,
    judged,
    note,
    tally,
    untested,
    versus,
    why,
)
from experiment.experiments.found import Found
from experiment.experiments.labels import figure_label

_NAME = "holes"
_FIRST = ("first_step", "needed", "free", "largest")


def _overrides(config: Config, requests: int) -> dict[str, Any]:
    options: Any = config.experiment.options
    return {
        "workload.lengths": in_turn(options["lengths"], requests),
        "workload.arrivals": [index * options["every"] for index in range(requests)],
        "workload.clock": "steps",
    }


def _findings(found: Found) -> list[Finding]:
    cell = found.last("paged")
    return [_refused(found, cell), _buddy(found, cell), _paged(found, cell)]


def _refused(found: Found, cell: CellResult | None) -> Finding:
    """Whether a request was refused due to fragmentation alone."""
    row = _refusals(found, cell, "first_fit")
    first = tally(found, cell, "paged", *(f"first_fit_{name}" for name in _FIRST))
    shown = row is not None and bool(row.estimate)
    return judged("refused", row, shown, first if shown else None)


def _refusals(found: Found, cell: CellResult | None, arena: str) -> Compared | None:
    """Share of steps in which an arena refused a request in spite of enough free slots."""
    names = (f"{arena}_refused_steps", f"{arena}_steps")
    refused, steps = (found.value(cell, "paged", name) for name in names)
    if refused is None:
        return None
    return counted(figure_label(names[0]), int(refused), None if steps is None else int(steps))


def _buddy(found: Found, cell: CellResult | None) -> Finding:
    row = _refusals(found, cell, "buddy")
    return fact("buddy", row if row and row.n is not None else None)


def _paged(found: Found, cell: CellResult | None) -> Finding:
    """The same requests in blocks: concurrency and number of steps.

    The arena allocates the final length of a request, as if known in advance. Blocks avoid its
    fragmentation and its slots that are not yet used.
    """
    mean, steps = (
        versus(found, (cell, "paged", figure), (cell, "paged", f"first_fit_{figure}"))
        for figure in ("running_mean", "steps")
    )
    if mean is None or steps is None:
        return untested("paged")
    # Preempted requests run twice, so higher concurrency is a gain only without more steps.
    more = (mean.estimate or 0) > MORE
    shown = more and (steps.estimate or 0) <= 1
    others = (steps, tally(found, cell, "paged", "preemptions"))
    notes = [note(_NAME, "paged_ahead") if shown else None]
    against = why("later" if more else "small")
    return judged("paged", mean, shown, *others, against=against, notes=notes)


HOLES = Experiment(
    name=_NAME,
    cells=varied("requests", _overrides),
    figures=(
        "first_fit_refused_steps", "first_fit_first_step", "first_fit_free", "first_fit_largest",
        "first_fit_needed", "first_fit_running_mean", "first_fit_running_peak", "first_fit_steps",
        "buddy_refused_steps", "buddy_running_mean", "buddy_running_peak", "buddy_steps",
        "running_mean", "running_peak", "steps", "preemptions", "waste",
    ),
    charts=("first_fit_refused_steps", "running_mean"),
    findings=_findings,
    options=("every", "lengths"),
    without={**contiguous("no_holes"), "slabs": "no_holes", **other_engines("no_holes")},
)  # fmt: skip
