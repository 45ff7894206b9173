"""What the block table costs: attention through it against the same kernel on contiguous memory.

Cells are contexts. ``options.requests`` of that length run for real, so that the cost can also be
told as a share of a decoding step; attention alone is timed beside them
(:mod:`experiment.engine.attention.lookup`).
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

from experiment.analysis.experiment_results import Finding, Number
from experiment.config.schema import Config
from experiment.experiments.base import Experiment, contiguous, in_turn, other_engines
from experiment.experiments.cells import Cell
from experiment.experiments.found import (
    FEWEST,
    Found,
    busy,
    detail,
    fact,
    few,
    judged_as,
    sentences,
    undecided,
    untested,
)
from experiment.text.messages import Message, message

_NAME = "lookup"
# The claim: less than this of a step.
UNDER = 0.01


def _cells(config: Config) -> list[Cell]:
    options: Any = config.experiment.options
    new, count = options["new"], options["requests"]
    cells = []
    for context in config.experiment.values:
        slots = int(context)
        lengths = in_turn([[slots - new + 1, new]], count)
        overrides = {"workload.lengths": lengths, "cache.max_length": slots}
        cells.append(Cell({"context": slots}, overrides))
    return cells


def _findings(found: Found) -> list[Finding]:
    return [_of_step(found), _of_attention(found), _scattered(found)]


def _of_step(found: Found) -> Finding:
    """Whether the table costs less than a hundredth of a decoding step, at every context.

    What attention takes through the table and without it differ by little, so repeats may lie on
    both sides of nothing: then no cost was seen, or, where they reach the limit too, none of both
    can be told. What ran on a busy machine excuses no cost at another context.
    """
    seen = _repeats(found, "lookup_of_step")
    if not seen:
        return untested("of_step")
    repeats = min(len(each.values) for each in seen)
    if repeats < FEWEST:
        return few("of_step", repeats)
    over = [each for each in seen if max(each.values) >= UNDER]
    clearly = [each for each in over if min(each.values) > 0 and not each.busy]
    if not clearly and any(each.busy for each in seen):
        return busy("of_step")
    how = detail(_NAME, "of_step_how")
    at = max(clearly or over or seen, key=lambda each: median(each.values))
    worst = at.values
    told = {"share": median(worst), "low": min(worst), "high": max(worst), "context": at.context,
            "limit": UNDER}  # fmt: skip
    if not over:
        key = "of_step_none" if min(worst) <= 0 else "of_step"
        return judged_as(_NAME, "of_step", key, True, how, **told)
    elsewhere = [_of_step_at(each) for each in seen if each is not at]
    if not clearly:
        text = message("experiments.lookup.of_step_unclear", **told)
        more = sentences([*elsewhere, how, detail(_NAME, "of_step_advice")])
        return Finding(id="of_step", verdict="untested", text=text, more=more)
    key = "of_step_all" if min(worst) >= UNDER else "of_step"
    return judged_as(_NAME, "of_step", key, False, *elsewhere, how, **told)


def _of_step_at(seen: _Seen) -> Message:
    """What is known of another context than the one that decides."""
    least, most = min(seen.values), max(seen.values)
    within = "below" if most < UNDER else "over" if least >= UNDER else "both"
    told = {"share": median(seen.values), "low": least, "high": most, "context": seen.context,
            "limit": UNDER}  # fmt: skip
    return detail(_NAME, f"of_step_at_{'busy' if seen.busy else within}", **told)


@dataclass(frozen=True, slots=True)
class _Seen:
    """Repeats of a figure at a context, and whether the arm ran on a busy machine."""

    context: int
    values: list[Number]
    busy: bool


def _repeats(found: Found, name: str) -> list[_Seen]:
    """The same at every context where it is known."""
    return [
        _Seen(int(cell.values["context"]), figure.values, found.busy(cell, "paged"))
        for cell in found.with_arms("paged")
        if (figure := found.figure(cell, "paged", name)) and figure.values
    ]


def _of_attention(found: Found) -> Finding:
    """How much longer attention alone takes, at each context as far as repeats allow."""
    seen = _repeats(found, "lookup_share")
    if not seen:
        return untested("of_attention")
    text, *others = (_at(each) for each in seen)
    return Finding(id="of_attention", verdict=None, text=text, more=sentences(others))


def _at(seen: _Seen) -> Message:
    """What attention through the table takes besides; on both sides of nothing it is noise."""
    shares = seen.values
    least, most = min(shares), max(shares)
    told = {"context": seen.context, "low": least, "high": most}
    if len(shares) < FEWEST:
        told |= {"n": len(shares), "least": FEWEST}
        return message("experiments.lookup.of_attention_few", **told)
    if seen.busy:
        return message("experiments.lookup.of_attention_busy", **told)
    key = "more" if least > 0 else "less" if most < 0 else "none"
    if key == "less":
        told |= {"low": -most, "high": -least}
    return message(f"experiments.lookup.of_attention_{key}", share=abs(median(shares)), **told)


def _scattered(found: Found) -> Finding:
    """Whether it matters where blocks lie."""
    cell = next(reversed(list(found.with_arms("paged"))), None)
    if cell is None:
        return untested("scattered")
    slower = found.compared(
        (cell, "paged", "lookup_scattered_s"), (cell, "paged", "lookup_ordered_s")
    )
    if slower is None:
        return untested("scattered")
    if not slower.enough:
        return undecided("scattered", slower)
    key = "none" if not slower.clear else "slower" if slower.factor > 1 else "faster"
    told = {"context": cell.values["context"], "low": slower.low, "high": slower.high}
    return fact(_NAME, "scattered", key, **told, **slower.told)


LOOKUP = Experiment(
    name=_NAME,
    cells=_cells,
    figures=(
        "lookup_contiguous_s", "lookup_ordered_s", "lookup_scattered_s", "lookup_share",
        "lookup_of_step", "table_entries", "decode_step_s", "budget_bytes",
    ),
    charts=("lookup_of_step", "lookup_share", "lookup_contiguous_s", "lookup_scattered_s"),
    findings=_findings,
    options=("requests", "new"),
    without={**contiguous("no_table"), "slabs": "contiguous_side", **other_engines("own_kernels")},
    within=True,
)  # fmt: skip
