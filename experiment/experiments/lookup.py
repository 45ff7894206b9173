"""What the block table costs: attention through it against the same kernel on contiguous memory.

Cells are contexts. ``options.requests`` of that length run for real, so that the cost can also be
told as a share of a step; attention alone is timed beside them (:mod:`experiment.engine.lookup`).
"""

from __future__ import annotations

from statistics import median
from typing import Any

from experiment.config import Config
from experiment.experiments.base import Cell, Experiment
from experiment.experiments.found import Found, fact, judged, untested
from experiment.experiments.results import Finding

_NAME = "lookup"
# The claim: less than this of a step.
UNDER = 0.01


def _cells(config: Config) -> list[Cell]:
    options: Any = config.experiment.options
    new, count = options["new"], options["requests"]
    cells = []
    for context in config.experiment.values:
        slots = int(context)
        lengths = [[slots - new + 1, new]] * count
        overrides = {"workload.lengths": lengths, "cache.max_length": slots}
        cells.append(Cell({"context": slots}, overrides))
    return cells


def _findings(found: Found) -> list[Finding]:
    return [_of_step(found), _of_attention(found), _scattered(found)]


def _of_step(found: Found) -> Finding:
    """Whether the table costs less than a hundredth of a step, at every context."""
    seen = [
        (cell.values["context"], figure.values)
        for cell in found.with_arms("paged")
        if (figure := found.figure(cell, "paged", "lookup_of_step")) and figure.values
    ]
    if not seen:
        return untested("of_step")
    context, worst = max(seen, key=lambda pair: median(pair[1]))
    shown = all(max(values) < UNDER for _, values in seen)
    return judged(_NAME, "of_step", shown, share=median(worst), context=context, limit=UNDER)


def _of_attention(found: Found) -> Finding:
    """The same as a share of attention alone."""
    seen = [
        (cell.values["context"], share)
        for cell in found.with_arms("paged")
        if (share := found.value(cell, "paged", "lookup_share")) is not None
    ]
    if not seen:
        return untested("of_attention")
    least, most = (pick(seen, key=lambda pair: pair[1]) for pick in (min, max))
    figures = {"least": least[1], "most": most[1]}
    return fact(
        _NAME, "of_attention", "seen", least_context=least[0], most_context=most[0], **figures
    )


def _scattered(found: Found) -> Finding:
    """Whether it matters where blocks lie."""
    cell = next(reversed(list(found.with_arms("paged"))), None)
    faster = None
    if cell is not None:
        one = found.figure(cell, "paged", "lookup_scattered_s")
        base = found.figure(cell, "paged", "lookup_ordered_s")
        if one and base and one.value and base.value:
            faster = one.value / base.value
    if cell is None or faster is None:
        return untested("scattered")
    return fact(_NAME, "scattered", "seen", factor=faster, context=cell.values["context"])


LOOKUP = Experiment(
    name=_NAME,
    cells=_cells,
    figures=(
        "lookup_contiguous_s", "lookup_ordered_s", "lookup_scattered_s", "lookup_share",
        "lookup_of_step", "table_entries", "step_s",
    ),
    charts=("lookup_contiguous_s", "lookup_scattered_s", "lookup_share"),
    findings=_findings,
)  # fmt: skip
