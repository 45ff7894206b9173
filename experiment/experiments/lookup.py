"""What the block table costs: attention through it against the same kernel on contiguous memory.

Cells are contexts. ``options.requests`` of that length run for real, so that the cost can also be
told as a share of a decoding step; attention alone is timed beside them
(:mod:`experiment.engine.lookup`).
"""

from __future__ import annotations

from statistics import median
from typing import Any

from experiment.config import Config
from experiment.experiments.base import Cell, Experiment, contiguous, other_engines
from experiment.experiments.found import (
    FEWEST,
    Found,
    detail,
    fact,
    few,
    judged,
    judged_as,
    ratio,
    sentences,
    untested,
)
from experiment.experiments.results import Finding, Number
from experiment.messages import Message, message

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
    """Whether the table costs less than a hundredth of a decoding step, at every context.

    What attention takes through the table and without it differ by little, so repeats may lie on
    both sides of nothing: then no cost was seen, or, where they reach the limit too, none of both
    can be told.
    """
    seen = _repeats(found, "lookup_of_step")
    if not seen:
        return untested("of_step")
    if min(len(values) for _, values in seen) < FEWEST:
        return few("of_step", min(len(values) for _, values in seen))
    over = [pair for pair in seen if max(pair[1]) >= UNDER]
    clearly = [pair for pair in over if min(pair[1]) > 0]
    context, worst = max(clearly or over or seen, key=lambda pair: median(pair[1]))
    told = {"share": median(worst), "low": min(worst), "high": max(worst), "context": context,
            "limit": UNDER}  # fmt: skip
    if over and not clearly:
        text = message("experiments.lookup.of_step_unclear", **told)
        advice = detail(_NAME, "of_step_advice")
        return Finding(id="of_step", verdict="untested", text=text, more=advice)
    if not over and min(worst) <= 0:
        return judged_as(_NAME, "of_step", "of_step_none", True, **told)
    return judged(_NAME, "of_step", not over, **told)


def _repeats(found: Found, name: str) -> list[tuple[int, list[Number]]]:
    """Context and repeats of a figure, where it is known."""
    return [
        (int(cell.values["context"]), figure.values)
        for cell in found.with_arms("paged")
        if (figure := found.figure(cell, "paged", name)) and figure.values
    ]


def _of_attention(found: Found) -> Finding:
    """The same as a share of attention alone, at each context as far as repeats allow."""
    seen = _repeats(found, "lookup_share")
    if not seen:
        return untested("of_attention")
    text, *others = (_at(context, values) for context, values in seen)
    return Finding(id="of_attention", verdict=None, text=text, more=sentences(others))


def _at(context: int, shares: list[Number]) -> Message:
    """What attention through the table takes besides; on both sides of nothing it is noise."""
    least, most = min(shares), max(shares)
    told = {"context": context, "low": least, "high": most}
    if len(shares) < FEWEST:
        told |= {"n": len(shares), "least": FEWEST}
        return message("experiments.lookup.of_attention_few", **told)
    key = "more" if least > 0 else "less" if most < 0 else "none"
    if key == "less":
        told |= {"low": -most, "high": -least}
    return message(f"experiments.lookup.of_attention_{key}", share=abs(median(shares)), **told)


def _scattered(found: Found) -> Finding:
    """Whether it matters where blocks lie."""
    cell = next(reversed(list(found.with_arms("paged"))), None)
    if cell is None:
        return untested("scattered")
    scattered, ordered = (
        found.figure(cell, "paged", f"lookup_{name}_s") for name in ("scattered", "ordered")
    )
    slower = ratio(scattered, ordered)
    if slower is None:
        return untested("scattered")
    if not slower.enough:
        return few("scattered", slower.repeats)
    key = "none" if not slower.clear else "slower" if slower.factor > 1 else "faster"
    told = {"context": cell.values["context"], "low": slower.low, "high": slower.high}
    return fact(_NAME, "scattered", key, **told, **slower.told)


LOOKUP = Experiment(
    name=_NAME,
    cells=_cells,
    figures=(
        "lookup_contiguous_s", "lookup_ordered_s", "lookup_scattered_s", "lookup_share",
        "lookup_of_step", "table_entries", "decode_step_s",
    ),
    charts=("lookup_contiguous_s", "lookup_scattered_s", "lookup_share"),
    findings=_findings,
    options=("requests", "new"),
    without={**contiguous("no_table"), "slabs": "contiguous_side", **other_engines("own_kernels")},
)  # fmt: skip
