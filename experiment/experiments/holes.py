"""Requests of different lengths that come and go: holes of a contiguous arena, and blocks.

One cell. The paged arm serves the requests; beside it the same ones come and go in an arena of the
same bytes on the device (:mod:`experiment.engine.arena`), each in one piece of just its length.
"""

from __future__ import annotations

from typing import Any

from experiment.analysis.experiment_results import CellResult, Finding
from experiment.config.schema import Config
from experiment.experiments.base import Experiment, contiguous, in_turn, other_engines
from experiment.experiments.cells import Cell
from experiment.experiments.found import Found, detail, fact, judged, untested

_NAME = "holes"
# Fewer more at a time than this is called none.
_MORE = 1.05
_SEEN = ("refused_steps", "steps", "first_step", "free", "largest", "needed")


def _cells(config: Config) -> list[Cell]:
    options: Any = config.experiment.options
    cells = []
    for count in map(int, config.experiment.values):
        overrides = {
            "workload.lengths": in_turn(options["lengths"], count),
            "workload.arrivals": [index * options["every"] for index in range(count)],
            "workload.clock": "steps",
        }
        cells.append(Cell({"requests": count}, overrides))
    return cells


def _findings(found: Found) -> list[Finding]:
    cell = next(reversed(list(found.with_arms("paged"))), None)
    if cell is None:
        return [untested("refused"), untested("buddy"), untested("paged")]
    return [_refused(found, cell), _buddy(found, cell), _paged(found, cell)]


def _refused(found: Found, cell: CellResult) -> Finding:
    """Whether a request was refused for the arena's holes alone."""
    seen = {name: found.value(cell, "paged", f"first_fit_{name}") for name in _SEEN}
    if seen["refused_steps"] is None:
        return untested("refused")
    counts = {name: seen.pop(name) for name in ("refused_steps", "steps")}
    first = detail(_NAME, "refused_first", **seen) if counts["refused_steps"] else None
    return judged(_NAME, "refused", first is not None, first, **counts)


def _buddy(found: Found, cell: CellResult) -> Finding:
    refused, steps = (found.value(cell, "paged", f"buddy_{n}") for n in ("refused_steps", "steps"))
    if refused is None or steps is None:
        return untested("buddy")
    return fact(_NAME, "buddy", "seen", refused=refused, steps=steps)


def _paged(found: Found, cell: CellResult) -> Finding:
    """The same requests in blocks: how many at a time, and in how many steps.

    The arena keeps the length that a request has at its end, as somebody who knows it would: what
    blocks gain is its holes, and what it keeps ahead.
    """
    steps, mean = (found.value(cell, "paged", name) for name in ("steps", "running_mean"))
    arena, arena_mean = (
        found.value(cell, "paged", f"first_fit_{name}") for name in ("steps", "running_mean")
    )
    if steps is None or mean is None or arena is None or arena_mean is None:
        return untested("paged")
    figures = {"steps": steps, "mean": mean, "arena_steps": arena, "arena_mean": arena_mean}
    preemptions = found.value(cell, "paged", "preemptions")
    # Who is preempted runs twice: more at a time is a gain only if all are done no later.
    shown = mean > arena_mean * _MORE and steps <= arena
    ahead = detail(_NAME, "paged_ahead") if shown else None
    return judged(_NAME, "paged", shown, ahead, preemptions=preemptions, **figures)


HOLES = Experiment(
    name=_NAME,
    cells=_cells,
    figures=(
        "first_fit_refused_steps", "first_fit_first_step", "first_fit_free", "first_fit_largest",
        "first_fit_needed", "first_fit_running_mean", "first_fit_running_peak", "first_fit_steps",
        "buddy_refused_steps", "buddy_running_mean", "buddy_running_peak", "buddy_steps",
        "running_mean", "running_peak", "steps", "preemptions", "waste",
    ),
    charts=("first_fit_refused_steps", "running_mean"),
    findings=_findings,
    options=("every", "lengths"),
    without={**contiguous("arena_instead"), "slabs": "arena_instead", **other_engines("no_holes")},
)  # fmt: skip
