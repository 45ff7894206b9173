"""Cost of the block table: attention through it, and with the same kernel on contiguous memory.

Cells are contexts. ``options.requests`` requests of that length are served, to relate the cost to a
decode step; attention alone is timed separately (:mod:`experiment.engine.attention.lookup`).
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

from experiment.analysis.experiment_results import (
    CellResult,
    Compared,
    FigureValue,
    Finding,
    Number,
)
from experiment.config.schema import Config
from experiment.experiments.base import Experiment, contiguous, in_turn, other_engines, varied
from experiment.experiments.findings import (
    fact,
    judged,
    note,
    side,
    timed,
    undecided,
    untested,
    why,
)
from experiment.experiments.found import FEWEST, Found
from experiment.experiments.labels import axis_label, figure_label, side_label
from experiment.text.messages import Message

_NAME = "lookup"
# The claim: a smaller share of a decode step than this.
UNDER = 0.01


def _overrides(config: Config, slots: int) -> dict[str, Any]:
    options: Any = config.experiment.options
    lengths = in_turn([[slots - options["new"] + 1, options["new"]]], options["requests"])
    return {"workload.lengths": lengths, "cache.max_length": slots}


def _findings(found: Found) -> list[Finding]:
    return [_of_step(found), _of_attention(found), _scattered(found)]


def _of_step(found: Found) -> Finding:
    """Whether the table costs less than ``UNDER`` of a decode step, at every context.

    The difference is small, so repeats may include zero: then there is no measurable cost, or no
    verdict if they reach the limit too. Background load at one context does not affect the others.
    """
    seen = _repeats(found, "lookup_of_step")
    if not seen:
        return untested("of_step")
    over = [each for each in seen if max(each.values) >= UNDER]
    clearly = [each for each in over if min(each.values) > 0 and not each.busy]
    at = max(clearly or over or seen, key=lambda each: median(each.values))
    row = at.row("lookup_of_step")
    others = [each.row("lookup_of_step") for each in seen if each is not at]
    how = [note(_NAME, "of_step_how")]
    repeats, reason = min(len(each.values) for each in seen), None
    if repeats < FEWEST:
        reason = why("few", n=repeats, least=FEWEST)
    elif not clearly and any(each.busy for each in seen):
        reason = why("busy")
    elif over and not clearly:
        reason = why("both_sides", limit=UNDER)
    if reason is not None:
        return undecided("of_step", row, *others, reason=reason, notes=how)
    return judged("of_step", row, not over, *others, notes=how)


@dataclass(frozen=True, slots=True)
class _Seen:
    """Repeats of a figure at a context; ``busy``: with background load."""

    cell: CellResult
    values: list[Number]
    busy: bool

    def row(self, figure: str) -> Compared:
        """A row with the median, the smallest and the largest repeat."""
        value = FigureValue(value=median(self.values), values=self.values)
        label = side_label("context", self.cell.values["context"])
        return Compared(
            figure=figure_label(figure), at=axis_label("context"),
            sides=[side(label, figure, value)], kind="value", estimate=value.value,
            low=value.low, high=value.high, n=len(self.values), reason=self.doubt,
        )  # fmt: skip

    @property
    def doubt(self) -> Message | None:
        """Why it is not distinguishable from zero; None if it is."""
        if len(self.values) < FEWEST:
            return why("few", n=len(self.values), least=FEWEST)
        if self.busy:
            return why("busy")
        return why("overlap") if min(self.values) <= 0 <= max(self.values) else None


def _repeats(found: Found, name: str) -> list[_Seen]:
    """Repeats of a figure at every context that has it."""
    return [
        _Seen(cell, figure.values, found.busy(cell, "paged"))
        for cell in found.with_arms("paged")
        if (figure := found.figure(cell, "paged", name)) and figure.values
    ]


def _of_attention(found: Found) -> Finding:
    """Additional time of attention alone, at each context."""
    rows = [each.row("lookup_share") for each in _repeats(found, "lookup_share")]
    return fact("of_attention", *rows) if rows else untested("of_attention")


def _scattered(found: Found) -> Finding:
    """Effect of the order of blocks in memory."""
    cell = found.last("paged")
    one, base = ((cell, "paged", f"lookup_{name}_s") for name in ("scattered", "ordered"))
    return timed(found, "scattered", one, base, least=None)


LOOKUP = Experiment(
    name=_NAME,
    cells=varied("context", _overrides),
    figures=(
        "lookup_contiguous_s", "lookup_ordered_s", "lookup_scattered_s", "lookup_share",
        "lookup_of_step", "table_entries", "decode_step_s", "budget_bytes",
    ),
    charts=("lookup_of_step", "lookup_share", "lookup_contiguous_s", "lookup_scattered_s"),
    findings=_findings,
    options=("requests", "new"),
    without={**contiguous("one_kernel"), "slabs": "one_kernel", **other_engines("one_kernel")},
)  # fmt: skip
