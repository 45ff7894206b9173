"""Findings from figures: values side by side, and the verdict that they allow.

versus    one figure twice            blocks 312.4, slabs 151.2; 2.07 times (2.01 to 2.11, 5 rounds)
factors   that ratio over the cells   4: 1.02 (0.99 to 1.04), 24: 2.07 (2.01 to 2.11)
series    one figure over the cells   1: 0.0 %, 16: 6.2 %
tally     several figures of an arm   Steps 34, Preemptions 5
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from experiment.analysis.experiment_results import (
    CellResult,
    Compared,
    FigureValue,
    Finding,
    Number,
    Side,
    Verdict,
)
from experiment.experiments.figures import FIGURES
from experiment.experiments.found import Faster, Found, Place
from experiment.experiments.labels import (
    arm_figure,
    arm_in_cell,
    arm_label,
    axis_label,
    cell_place,
    figure_label,
    labelled,
    side_label,
)
from experiment.text.messages import Message, message

Beside = Compared | None
# Shares so small that a whole percent says nothing.
_FINE = ("saved", "lookup_share", "lookup_of_step", "attention_error", "logit_error")
_RATIOS = ("later_tokens", "rest", "slowest")
_UNITS = {"count": "count", "mean": "rate", "share": "percent", "bytes": "bytes",
          "seconds": "seconds", "rate": "rate"}  # fmt: skip


def why(name: str, **params: object) -> Message:
    """A reason out of ``experiments.why``."""
    return message(f"experiments.why.{name}", **params)


def note(experiment: str, name: str, **params: object) -> Message:
    """A note out of an experiment's own texts."""
    return message(f"experiments.{experiment.replace('-', '_')}.{name}", **params)


def unit_of(figure: str) -> str:
    """The format that a figure is written in."""
    if figure in _FINE:
        return "fine_percent"
    return "ratio" if figure in _RATIOS else _UNITS[FIGURES[figure].about.unit]


def side(label: Message | str, figure: str, value: FigureValue | Number | None) -> Side:
    """A value of a figure with its spread, if it has one."""
    seen = value if isinstance(value, FigureValue) else FigureValue(value=value)
    return Side(label=label, value=seen.value, unit=unit_of(figure), low=seen.low, high=seen.high)


def seen_as(factor: Faster, *, is_timed: bool = True) -> dict[str, Any]:
    """A factor as fields of :class:`Compared`."""
    fields: dict[str, Any] = {"kind": "ratio", "estimate": factor.factor}
    if is_timed:
        fields |= {"low": factor.low, "high": factor.high, "n": factor.repeats,
                   "rounds": factor.turns, "reason": factor.reason}  # fmt: skip
    return fields


def versus(found: Found, one: Place, base: Place, *axes: str) -> Beside:
    """One figure in two places and the first over the second; None: one of the two is unknown.

    ``axes``: those of the cell that are named; by default all that both places share.
    """
    first, second = found.figure(*one), found.figure(*base)
    if first is None or second is None:
        return None
    (cell, arm, figure), (other, other_arm, other_figure) = one, base
    same = {axis for axis in cell.values if cell.values[axis] == other.values.get(axis)}
    named, of = list(cell.values), None
    if arm != other_arm:
        of, labels = figure_label(figure), [arm_label(arm), arm_label(other_arm)]
    elif cell.values != other.values:
        of, apart = arm_figure(arm, figure), next(axis for axis in named if axis not in same)
        labels = [side_label(apart, each.values[apart]) for each in (cell, other)]
        named = [axis for axis in named if axis in same]
    else:
        labels = [labelled(figure_label(name)) for name in (figure, other_figure)]
    row = Compared(
        figure=of,
        at=cell_place(cell, axes or named),
        sides=[side(labels[0], figure, first.value), side(labels[1], other_figure, second.value)],
    )
    factor, is_timed = found.compared(one, base), FIGURES[figure].about.kind == "time"
    if factor is None or not first.value:
        return row
    return row.model_copy(update=seen_as(factor, is_timed=is_timed))


def between(found: Found, cell: CellResult, figure: str, arm: str, base: str, *axes: str) -> Beside:
    """The same of two arms in one cell."""
    return versus(found, (cell, arm, figure), (cell, base, figure), *axes)


Ratios = Sequence[tuple[CellResult, Faster]]


def ratios(
    found: Found, cells: Iterable[CellResult], figure: str, arm: str, base: str
) -> list[tuple[CellResult, Faster]]:
    """A figure of an arm over that of another, in every cell that has both."""
    seen = ((cell, found.ratio(cell, figure, arm, base)) for cell in cells)
    return [(cell, factor) for cell, factor in seen if factor is not None]


def factors(seen: Ratios, figure: str, arm: str, base: str, axis: str, *, least: int = 2) -> Beside:
    """The ratio of two arms over the cells; None: of fewer than ``least``."""
    if len(seen) < least:
        return None
    of = message("experiments.found.over", one=arm_label(arm).model_dump(),
                 base=arm_label(base).model_dump(),
                 figure=figure_label(figure).model_dump())  # fmt: skip
    sides = [factor_side(side_label(axis, cell.values[axis]), factor) for cell, factor in seen]
    return Compared(figure=of, at=axis_label(axis), sides=sides, reason=doubt(seen))


def factor_side(label: Message, factor: Faster) -> Side:
    """A ratio among others, with its spread."""
    spread = {"low": factor.low, "high": factor.high} if factor.repeats > 1 else {}
    return Side(label=label, value=factor.factor, unit="ratio", **spread)


def doubt(seen: Ratios) -> Message | None:
    """Too few repeats, or a busy machine, of any of several times; None: of none."""
    timed = (factor for _, factor in seen if factor.repeats)
    return next((factor.reason for factor in timed if factor.lacking), None)


def steps_instead(found: Found, cell: CellResult, faster: Faster | None) -> Beside:
    """Steps of blocks and slabs where times decide nothing; else None."""
    if faster is not None and faster.tells:
        return None
    return between(found, cell, "steps", "paged", "slabs")


def series(found: Found, cells: Iterable[CellResult], figure: str, arm: str, axis: str) -> Compared:
    """A figure of an arm over the cells that have it."""
    sides = [
        side(side_label(axis, cell.values[axis]), figure, value)
        for cell in cells
        if (value := found.figure(cell, arm, figure)) is not None
    ]
    return Compared(figure=arm_figure(arm, figure), at=axis_label(axis), sides=sides)


def tally(found: Found, cell: CellResult, arm: str, *figures: str) -> Beside:
    """Several figures of an arm in a cell, those that are known; None: none is."""
    sides = [
        side(labelled(figure_label(figure)), figure, value)
        for figure in figures
        if (value := found.figure(cell, arm, figure)) is not None
    ]
    return Compared(at=arm_in_cell(arm, cell), sides=sides) if sides else None


def counted(figure: Message, count: int, of: int | None) -> Compared:
    """So many of so many."""
    return Compared(figure=figure, kind="of", estimate=count, n=of)


def same_outputs(pairs: Iterable[tuple[Sequence[str], Sequence[str]]]) -> Beside:
    """Outputs with the same tokens as those of a reference, the second; None: there are none."""
    equal = outputs = 0
    for one, other in pairs:
        outputs += len(other)
        equal += sum(a == b for a, b in zip(one, other, strict=False))
    row = counted(message("experiments.found.same_outputs"), equal, outputs)
    if not outputs:
        return None
    return row if equal == outputs else row.model_copy(update={"reason": why("digits")})


def fact(name: str, row: Beside, *beside: Beside, **more: Any) -> Finding:
    """What was seen, without a claim; untested where the figures are missing.

    ``more``: further fields of the finding.
    """
    if row is None or not (row.sides or row.kind):
        return untested(name, **more)
    return _finding(name, None, row, beside, **more)


def judged(
    name: str,
    row: Beside,
    shown: bool,
    *beside: Beside,
    against: Message | None = None,
    **more: Any,
) -> Finding:
    """A claim that this run shows or does not; ``against``: why it does not."""
    if row is None:
        return untested(name, **more)
    if not shown and against is not None:
        row = row.model_copy(update={"reason": against})
    return _finding(name, "shown" if shown else "not_shown", row, beside, **more)


def timed(
    found: Found, name: str, one: Place, base: Place, *beside: Beside, least: float = 1.0,
    axes: Iterable[str] = (),
    **more: Any,
) -> Finding:  # fmt: skip
    """A claim that a time or rate is more than ``least`` times another one.

    Without enough repeats, or of an arm that ran on a busy machine, there is no verdict.
    """
    row, factor = versus(found, one, base, *axes), found.compared(one, base)
    if row is None or factor is None:
        return untested(name, **more)
    if not factor.enough:
        return _finding(name, "untested", row, beside, **more)
    shown = factor.clear and factor.factor > least
    against = row.reason or why("small" if factor.factor > 1 else "opposite")
    return judged(name, row, shown, *beside, against=against, **more)


def undecided(name: str, row: Compared, *beside: Beside, reason: Message, **more: Any) -> Finding:
    """A claim about values that do not decide it."""
    row = row.model_copy(update={"reason": reason})
    return _finding(name, "untested", row, beside, **more)


def untested(name: str, reason: Message | None = None, **more: Any) -> Finding:
    """A claim without the figures that it needs.

    ``reason``: None: an arm did not run, or did not end well.
    """
    row = Compared(reason=reason or why("missing"))
    return _finding(name, "untested", row, (), **more)


def _finding(
    name: str, verdict: Verdict | None, row: Compared, beside: Iterable[Beside], **more: Any
) -> Finding:
    fields = {field: getattr(row, field) for field in Compared.model_fields}
    known = [each for each in beside if each is not None and (each.sides or each.kind)]
    notes = [text for text in more.pop("notes", ()) if text is not None]
    return Finding(id=name, verdict=verdict, beside=known, notes=notes, **(fields | more))
