"""Build findings from figures: compared values and a verdict.

versus    a figure in two places    paged 312.4, slabs 151.2; 2.07 times (2.01 to 2.11)
factors   that ratio per cell       4 → 1.02 (0.99 to 1.04), 24 → 2.07 (2.01 to 2.11)
series    a figure per cell         1 → 0.0 %, 16 → 6.2 %
tally     several figures           Steps: 34; Preemptions: 5
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from experiment.analysis.experiment_results import (
    CellArm,
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
    value_label,
)
from experiment.text.messages import Message, message

Row = Compared | None
# Shares that are too small for whole percents.
_FINE = ("saved", "lookup_share", "lookup_of_step", "attention_error", "logit_error")
# Blocks over slabs of the same engine: the effect of paging alone.
BOTH = ("paged", "slabs")
# Smaller factors of concurrency count as no gain. Less waste alone is none if no request waits.
MORE = 1.05
_RATIOS = ("later_tokens", "rest", "slowest")
_UNITS = {"count": "count", "mean": "rate", "share": "percent", "bytes": "bytes",
          "seconds": "seconds", "rate": "rate"}  # fmt: skip


def why(name: str, **params: object) -> Message:
    """A reason in ``experiments.why``."""
    return message(f"experiments.why.{name}", **params)


def note(experiment: str, name: str, **params: object) -> Message:
    """A note in the texts of an experiment."""
    return message(f"experiments.{experiment.replace('-', '_')}.{name}", **params)


def unit_of(figure: str) -> str:
    """The format of a figure."""
    if figure in _FINE:
        return "fine_percent"
    return "ratio" if figure in _RATIOS else _UNITS[FIGURES[figure].about.unit]


def side(label: Message | str, figure: str, value: FigureValue | Number | None) -> Side:
    """A figure's value with its spread, if any."""
    seen = value if isinstance(value, FigureValue) else FigureValue(value=value)
    return Side(label=label, value=seen.value, unit=unit_of(figure), low=seen.low, high=seen.high)


def seen_as(factor: Faster, *, is_timed: bool = True) -> dict[str, Any]:
    """Fields of :class:`Compared` for a factor."""
    fields: dict[str, Any] = {"kind": "ratio", "estimate": factor.factor}
    if is_timed:
        fields |= {"low": factor.low, "high": factor.high, "n": factor.repeats,
                   "rounds": factor.turns, "reason": factor.reason}  # fmt: skip
    return fields


def versus(found: Found, one: Place, base: Place, *axes: str) -> Row:
    """Compare a figure in two places, the first over the second; None if either is unknown.

    ``axes``: axes of the cell to name; by default all that both places share.
    """
    first, second = found.figure(*one), found.figure(*base)
    (cell, arm, figure), (other, other_arm, other_figure) = one, base
    if first is None or second is None or cell is None or other is None:
        return None
    same = {axis for axis in cell.values if cell.values[axis] == other.values.get(axis)}
    named, of = list(cell.values), None
    if arm != other_arm:
        of, labels = figure_label(figure), [arm_label(arm), arm_label(other_arm)]
    elif cell.values != other.values:
        of, apart = arm_figure(arm, figure), next(axis for axis in named if axis not in same)
        labels = [labelled(value_label(apart, each.values[apart])) for each in (cell, other)]
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


def between(
    found: Found, cell: CellResult | None, figure: str, arm: str, base: str, *axes: str
) -> Row:
    """Compare two arms in one cell; see :func:`versus`."""
    return versus(found, (cell, arm, figure), (cell, base, figure), *axes)


Ratios = Sequence[tuple[CellResult, Faster]]


def ratios(
    found: Found, cells: Iterable[CellResult], figure: str, arm: str, base: str
) -> list[tuple[CellResult, Faster]]:
    """A figure of ``arm`` over that of ``base``, in every cell that has both."""
    seen = ((cell, found.ratio(cell, figure, arm, base)) for cell in cells)
    return [(cell, factor) for cell, factor in seen if factor is not None]


def factors(seen: Ratios, figure: str, arm: str, base: str, axis: str, *, least: int = 2) -> Row:
    """A row of two arms' ratios by cell; None if there are fewer than ``least``."""
    if len(seen) < least:
        return None
    of = message("experiments.found.over", one=arm_label(arm).model_dump(),
                 base=arm_label(base).model_dump(),
                 figure=figure_label(figure).model_dump())  # fmt: skip
    sides = [factor_side(side_label(axis, cell.values[axis]), factor) for cell, factor in seen]
    return Compared(figure=of, at=axis_label(axis), sides=sides, reason=doubt(seen))


def factor_side(label: Message, factor: Faster) -> Side:
    """One ratio of a row, with its spread."""
    spread = {"low": factor.low, "high": factor.high} if factor.repeats > 1 else {}
    return Side(label=label, value=factor.factor, unit="ratio", **spread)


def doubt(seen: Ratios) -> Message | None:
    """The reason if any time has too few repeats or background load, otherwise None."""
    timed = (factor for _, factor in seen if factor.repeats)
    return next((factor.reason for factor in timed if factor.lacking), None)


def series(found: Found, cells: Iterable[CellResult], figure: str, arm: str, axis: str) -> Compared:
    """A figure of an arm by cell, without cells that lack it."""
    sides = [
        side(side_label(axis, cell.values[axis]), figure, value)
        for cell in cells
        if (value := found.figure(cell, arm, figure)) is not None
    ]
    return Compared(figure=arm_figure(arm, figure), at=axis_label(axis), sides=sides)


def tally(found: Found, cell: CellResult | None, arm: str, *figures: str) -> Row:
    """The known ones of several figures of an arm in a cell; None if none is known."""
    if cell is None:
        return None
    sides = [
        side(labelled(figure_label(figure)), figure, value)
        for figure in figures
        if (value := found.figure(cell, arm, figure)) is not None
    ]
    return Compared(at=arm_in_cell(arm, cell), sides=sides) if sides else None


def counted(figure: Message, count: int, of: int | None) -> Compared:
    """A row "``count`` of ``of``"."""
    return Compared(figure=figure, kind="of", estimate=count, n=of)


def same_outputs(pairs: Iterable[tuple[CellArm | None, CellArm | None]]) -> Row:
    """Number of outputs equal to the reference's, the second of each pair; None without any."""
    both = [(one.outputs, other.outputs) for one, other in pairs if one and other]
    outputs = sum(len(other) for _, other in both)
    equal = sum(a == b for pair in both for a, b in zip(*pair, strict=False))
    row = counted(message("experiments.found.same_outputs"), equal, outputs)
    if not outputs:
        return None
    return row if equal == outputs else row.model_copy(update={"reason": why("digits")})


def fact(name: str, row: Row, *others: Row, **more: Any) -> Finding:
    """A finding without a verdict; untested if the figures are missing.

    ``more``: further fields of the finding.
    """
    if row is None or not (row.sides or row.kind):
        return untested(name, **more)
    return _finding(name, None, row, others, **more)


def judged(
    name: str,
    row: Row,
    shown: bool,
    *others: Row,
    against: Message | None = None,
    **more: Any,
) -> Finding:
    """A finding that is shown or not shown; ``against``: the reason if not."""
    if row is None:
        return untested(name, **more)
    if not shown and against is not None:
        row = row.model_copy(update={"reason": against})
    return _finding(name, "shown" if shown else "not_shown", row, others, **more)


def more_at_once(
    found: Found, name: str, cell: CellResult | None, row: Row, *others: Row, first: Row = None,
    **more: Any,
) -> Finding:  # fmt: skip
    """A finding that blocks hold more requests than slabs (``row``), and are not slower.

    If times are inconclusive, slower is measured in steps. ``first``: a row before the times.
    """
    if row is None or row.estimate is None:
        return untested(name, **more)
    rate, steps = (between(found, cell, each, *BOTH) for each in ("tokens_per_s", "steps"))
    faster, holds = found.ratio(cell, "tokens_per_s", *BOTH), row.estimate > MORE
    if faster is not None and faster.enough and faster.tie != "margin":
        slower, steps = faster.clear and faster.factor < 1, None
    else:
        blocks, slabs = (found.value(cell, arm, "steps") for arm in BOTH)
        slower = blocks is not None and slabs is not None and blocks > slabs
    against = why("later" if holds else "small")
    shown = holds and not slower
    return judged(name, row, shown, first, rate, steps, *others, against=against, **more)


def same(name: str, row: Row, *others: Row) -> Finding:
    """A finding that all outputs are the same; ``row`` is of :func:`same_outputs`."""
    return judged(name, row, row is not None and row.reason is None, *others)


def timed(
    found: Found, name: str, one: Place, base: Place, *others: Row, least: float | None = 1.0,
    axes: Iterable[str] = (),
    **more: Any,
) -> Finding:  # fmt: skip
    """A finding that a time or rate is more than ``least`` times another one; None: no verdict.

    Untested with too few repeats or background load.
    """
    row, factor = versus(found, one, base, *axes), found.compared(one, base)
    if row is None or factor is None:
        return untested(name, **more)
    if not factor.enough:
        return _finding(name, "untested", row, others, **more)
    if least is None:
        return fact(name, row, *others, **more)
    shown = factor.clear and factor.factor > least
    against = row.reason or why("small" if factor.factor > 1 else "opposite")
    return judged(name, row, shown, *others, against=against, **more)


def undecided(name: str, row: Compared, *others: Row, reason: Message, **more: Any) -> Finding:
    """An untested finding with inconclusive values."""
    row = row.model_copy(update={"reason": reason})
    return _finding(name, "untested", row, others, **more)


def untested(name: str, reason: Message | None = None, **more: Any) -> Finding:
    """An untested finding without values.

    ``reason``: None: an arm did not run or failed.
    """
    row = Compared(reason=reason or why("missing"))
    return _finding(name, "untested", row, (), **more)


def _finding(
    name: str, verdict: Verdict | None, row: Compared, others: Iterable[Row], **more: Any
) -> Finding:
    fields = {field: getattr(row, field) for field in Compared.model_fields}
    known = [each for each in others if each is not None and (each.sides or each.kind)]
    notes = [text for text in more.pop("notes", ()) if text is not None]
    return Finding(id=name, verdict=verdict, beside=known, notes=notes, **(fields | more))
