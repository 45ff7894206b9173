"""Findings of requests that arrive at a rate.

The lowest rate that saturates each arm, by the rule of :mod:`experiment.experiments.load`; and the
effect of paging alone: latency and TTFT by the wall clock, counts in steps. Waiting for memory
delays the first token. Latency, which is mostly generation, shows it less, and a mean does not show
the longest waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from experiment.analysis.experiment_results import (
    CellResult,
    Compared,
    FigureValue,
    Finding,
    Number,
    Side,
)
from experiment.analysis.finding_text import listed
from experiment.experiments.findings import (
    between,
    fact,
    factors,
    note,
    ratios,
    side,
    timed,
    undecided,
    untested,
    why,
)
from experiment.experiments.found import Found
from experiment.experiments.labels import (
    arm_label,
    figure_label,
    labelled,
    rate_label,
    saturation_title,
)
from experiment.experiments.load import KEEPS_UP, LATER, LoadOutcome, alone_at
from experiment.text.messages import Message, message

_NAME, _AXIS = "serving", "rate"
# Slabs over blocks: how much longer requests take without paging.
_ARMS = ("slabs", "paged")


def limits(found: Found, cells: Sequence[CellResult], arms: Sequence[str]) -> list[Finding]:
    """The arms that saturate first, and the limit of each arm; ``cells``: on the wall clock."""
    seen = {arm: rates for arm in arms if (rates := _rates(found, cells, arm))}
    return [_first(seen), *(_limit(arm, rates) for arm, rates in seen.items())]


def sustains(found: Found, cells: Sequence[CellResult], arm: str, rate: float) -> bool | None:
    """Whether an arm sustains a rate; False if a lower one saturated it, None if unknown."""
    seen = _rates(found, cells, arm)
    if any(each.saturated and each.rate <= rate for each in seen):
        return False
    at = next((each for each in seen if each.rate == rate), None)
    return None if at is None or at.open else True


def saturated_at(found: Found, arm: str) -> float | None:
    """The lowest rate that saturates an arm, without background load; None if none does."""
    seen = _rates(found, found.cells, arm)
    return next((each.rate for each in seen if each.saturated and not each.busy), None)


@dataclass(frozen=True, slots=True)
class _Rate:
    """An arm at a rate, by repeats; see :class:`experiment.experiments.load.LoadOutcome`.

    ``busy``: there was background load, which may cause a queue, or hide one by slowing the first
    half only.
    """

    rate: float
    kept_up: FigureValue
    later: FigureValue
    rest: FigureValue | None
    alone: float | None
    busy: bool

    @property
    def saturated(self) -> bool:
        """Whether every repeat is saturated; a single one may be due to background load."""
        return bool(self._outcomes) and all(each.is_saturated for each in self._outcomes)

    @property
    def open(self) -> bool:
        """Whether it falls behind, but the queue did not grow in every repeat."""
        return not self.saturated and (self.kept_up.value or 0) < KEEPS_UP

    @property
    def row(self) -> Compared:
        """The medians of the criteria, and the slowest answer at a lower rate."""
        seen = {"kept_up": self.kept_up, "later_tokens": self.later, "rest": self.rest}
        sides = [side(labelled(figure_label(name)), name, value) for name, value in seen.items()
                 if value is not None]  # fmt: skip
        if self.alone is not None:
            sides.append(side(labelled(note(_NAME, "alone")), "slowest", self.alone))
        return Compared(at=rate_label(self.rate), sides=sides)

    @property
    def queues(self) -> dict[str, object]:
        """Number of repeats with a growing queue."""
        return {"queued": sum(one.is_saturated for one in self._outcomes),
                "repeats": len(self._outcomes)}  # fmt: skip

    @property
    def _outcomes(self) -> list[LoadOutcome]:
        pairs = list(zip(self.kept_up.values, self.later.values, strict=False))
        rests = self.rest.values if self.rest is not None else []
        both = zip_longest(pairs, rests[: len(pairs)])
        return [LoadOutcome(kept, later, rest, self.alone) for (kept, later), rest in both]


def _rates(found: Found, cells: Sequence[CellResult], arm: str) -> list[_Rate]:
    names = ("kept_up", "later_tokens", "rest", "slowest")
    slowest: list[tuple[float, Number]] = []
    rates = []
    for cell in sorted(cells, key=lambda each: float(each.values["rate"])):
        rate = float(cell.values["rate"])
        kept, later, rest, longest = (found.figure(cell, arm, name) for name in names)
        if kept is not None and later is not None:
            alone, busy = alone_at(rate, slowest), found.busy(cell, arm)
            rates.append(_Rate(rate, kept, later, rest, alone, busy))
        if longest is not None and longest.value is not None:
            slowest.append((rate, longest.value))
    return rates


def _first(seen: dict[str, list[_Rate]]) -> Finding:
    """The arms that saturate at the lowest rate; no value: not saturated at any tested rate."""
    at = {arm: next((r for r in rates if r.saturated), None) for arm, rates in seen.items()}
    row = Compared(
        figure=note(_NAME, "from"),
        sides=[Side(label=arm_label(arm), value=rate.rate if rate else None, unit="g")
               for arm, rate in at.items()],
    )  # fmt: skip
    if any(rate is not None and rate.busy for rate in at.values()):
        return undecided("first", row, reason=why("busy"))
    if not seen:
        return untested("first")
    known = [rate for rate in at.values() if rate is not None]
    if known:
        lowest = min(rate.rate for rate in known)
        row = row.model_copy(update={"kind": "from", "estimate": lowest})
    else:
        row = row.model_copy(update={"reason": why("sustained")})
    busy = (_disturbed(rates, at[arm] or rates[-1]) for arm, rates in seen.items())
    unclear = [arm for arm, rates in seen.items() if at[arm] is None and rates[-1].open]
    notes = [
        note(_NAME, "first_open", arms=listed(map(arm_label, unclear))) if unclear else None,
        next((text for text in busy if text), None),
        note(_NAME, "first_rule", keeps_up=KEEPS_UP, later=LATER),
    ]
    return fact("first", row, notes=notes)


def _limit(arm: str, rates: list[_Rate]) -> Finding:
    """The lowest rate that saturates an arm, otherwise the outcome at the highest one."""
    over_it = next((each for each in rates if each.saturated), None)
    at = over_it or rates[-1]
    key = "saturated" if over_it else "queue" if at.open else "sustained"
    row = at.row.model_copy(
        update={"reason": why(key, **at.queues), "estimate": at.rate,
                "kind": "from" if over_it else "value"}
    )  # fmt: skip
    lower = [each.rate for each in rates if not each.open and not each.saturated]
    below = note(_NAME, "below", rate=max(lower)) if lower and key != "sustained" else None
    notes = [_disturbed(rates, at), below]
    name = f"limit_{arm.replace('.', '_')}"
    return fact(name, row, notes=notes, title=saturation_title(arm))


def _disturbed(rates: list[_Rate], at: _Rate) -> Message | None:
    """A note if there was background load at a rate that determines the limit."""
    busy = any(each.busy and each.rate <= at.rate for each in rates)
    return message("experiments.busy") if busy else None


def paging_alone(found: Found, cells: list[CellResult]) -> Finding:
    """Compare blocks with slabs of the same engine at the highest rate.

    ``cells``: on the wall clock; counts come from those on the clock of steps.
    """
    on_steps = [cell for cell in found.cells if cell.values["clock"] == "steps"]
    steps = [between(found, cell, "steps", *_ARMS, _AXIS) for cell in on_steps]
    return _sooner(found, cells, "paging", "latency_s", *steps) or untested("paging")


def first_tokens(found: Found, cells: list[CellResult]) -> list[Finding]:
    """The same for TTFT: its mean, and its 95th percentile if known."""
    mean = _sooner(found, cells, "first_token", "first_token_s")
    if mean is None:
        return [untested("first_token")]
    late = _sooner(found, cells, "first_token_p95", "first_token_p95_s")
    return [mean] if late is None else [mean, late]


def _sooner(
    found: Found, cells: list[CellResult], name: str, figure: str, *others: Compared | None
) -> Finding | None:
    """Compare at the highest rate that has the figure; None if none has."""
    seen = ratios(found, cells, figure, *_ARMS)
    if not seen:
        return None
    cell = seen[-1][0]
    slabs, paged = ((cell, arm, figure) for arm in _ARMS)
    over, notes = factors(seen, figure, *_ARMS, _AXIS), [_queue(found, cells, cell)]
    return timed(found, name, slabs, paged, over, *others, axes=[_AXIS], notes=notes)


def _queue(found: Found, cells: list[CellResult], cell: CellResult) -> Message | None:
    """A note if slabs are saturated: the delay then depends on the number of requests."""
    kept_up = sustains(found, cells, "slabs", float(cell.values["rate"]))
    return note(_NAME, "queue", requests=cell.requests) if kept_up is False else None
