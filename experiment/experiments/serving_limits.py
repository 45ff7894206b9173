"""Which rate saturates an arm, and who gives in first; the rule is that of ``load``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from experiment.analysis.experiment_results import CellResult, FigureValue, Finding, Number
from experiment.experiments.found import (
    FEWEST,
    Found,
    busy,
    detail,
    fact,
    few_told,
    listed,
    sentences,
    untested,
)
from experiment.experiments.load import KEEPS_UP, LATER, LoadOutcome, all_saturated, alone_at
from experiment.text.messages import Message, arm_message

_NAME = "serving"


def limits(found: Found, cells: Sequence[CellResult], arms: Sequence[str]) -> list[Finding]:
    """Who gives in first, and the limit of each arm; ``cells`` are those by the wall clock."""
    seen = {arm: rates for arm in arms if (rates := _rates(found, cells, arm))}
    return [_first(seen), *(_limit(arm, rates) for arm, rates in seen.items())]


def sustains(found: Found, cells: Sequence[CellResult], arm: str, rate: float) -> bool | None:
    """Whether an arm sustains a rate: not if a lower one saturated it; None: not seen, or open."""
    seen = _rates(found, cells, arm)
    if any(each.saturated and each.rate <= rate for each in seen):
        return False
    at = next((each for each in seen if each.rate == rate), None)
    return None if at is None or at.open else True


@dataclass(frozen=True, slots=True)
class _Rate:
    """How an arm served a rate, by repeats; see :class:`experiment.experiments.load.LoadOutcome`.

    ``repeats``: those that the arm ran. ``busy``: other programs kept cores busy while it ran, so a
    queue may be theirs, or one not be seen: who is slowed in the first half is no later in the
    second.
    """

    rate: float
    kept_up: FigureValue
    later: FigureValue
    rest: FigureValue | None
    alone: float | None
    repeats: int
    busy: bool

    @property
    def saturated(self) -> bool:
        """In every repeat."""
        return all_saturated(self._outcomes)

    @property
    def open(self) -> bool:
        """Fewer ended than came, and not in every repeat a queue grew: it may have had no time."""
        return not self.saturated and (self.kept_up.value or 0) < KEEPS_UP

    @property
    def told(self) -> dict[str, object]:
        """For a text: the medians."""
        return {"rate": self.rate, "kept_up": self.kept_up.value, "later": self.later.value}

    @property
    def rest_told(self) -> Message | None:
        """For another: how long the rest took, where that is known, and what it is held against."""
        if self.rest is None:
            return None
        against = None if self.alone is None else detail(_NAME, "limit_alone", alone=self.alone)
        return sentences([detail(_NAME, "limit_rest", rest=self.rest.value), against])

    @property
    def queues(self) -> dict[str, object]:
        """For another: in how many repeats there was a queue that grew."""
        return {
            "queued": sum(one.is_saturated for one in self._outcomes),
            "repeats": len(self._outcomes),
        }

    @property
    def few(self) -> tuple[Message, ...]:
        """That it is seen in too few repeats to be more than chance, where it is.

        More are advised where the arm ran too few, not where some tell nothing of a queue.
        """
        seen = len(self._outcomes)
        told = few_told(seen) if seen < FEWEST else ()
        return told if self.repeats < FEWEST else told[:1]

    @property
    def half(self) -> str:
        """What it lacks of a queue in every repeat: a name under ``experiments.serving``."""
        fewer, late = (
            all(getattr(one, name) for one in self._outcomes)
            for name in ("falls_behind", "latency_grows")
        )
        return "open_later" if fewer else "open_fewer" if late else "open_both"

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
        ran, rate = cell.arm(arm), float(cell.values["rate"])
        kept, later, rest, longest = (found.figure(cell, arm, name) for name in names)
        if ran is not None and kept is not None and later is not None:
            alone, busy = alone_at(rate, slowest), found.busy(cell, arm)
            rates.append(_Rate(rate, kept, later, rest, alone, ran.repeats, busy))
        if longest is not None and longest.value is not None:
            slowest.append((rate, longest.value))
    return rates


def _first(seen: dict[str, list[_Rate]]) -> Finding:
    """Who gives in first: every arm that is saturated at the lowest rate at which any is.

    Who never was is named as well: of it the rates that were run do not show the limit.
    """
    gave = {arm: next((r for r in rates if r.saturated), None) for arm, rates in seen.items()}
    if any(rate is not None and rate.busy for rate in gave.values()):
        return busy("first")
    lowest = {arm: rate.rate if rate else None for arm, rate in gave.items()}
    known = [rate for rate in lowest.values() if rate is not None]
    if not seen:
        return untested("first")
    rule = detail(_NAME, "first_rule", keeps_up=KEEPS_UP, later=LATER)
    disturbed = [arm for arm, rates in seen.items() if _disturbed(rates, gave[arm] or rates[-1])]
    others = detail(_NAME, "first_busy", arms=_listed(disturbed)) if disturbed else None
    unclear = [arm for arm, rate in lowest.items() if rate is None and seen[arm][-1].open]
    left = detail(_NAME, "first_open", arms=_listed(unclear)) if unclear else None
    if not known:
        highest = min(rates[-1].rate for rates in seen.values())
        return fact(_NAME, "first", "none", left, others, rule, rate=highest)
    arms = [arm for arm, rate in lowest.items() if rate == min(known)]
    never = [arm for arm, rate in lowest.items() if rate is None and not seen[arm][-1].open]
    rest = None
    if never:
        rest = detail(_NAME, "first_never", arms=_listed(never))
    elif not unclear:
        rest = detail(_NAME, "first_all", rate=max(known))
    few = [rate.few for rate in gave.values() if rate is not None]
    chance = max(few, key=len, default=())
    told = {"arms": _listed(arms), "rate": min(known)}
    return fact(_NAME, "first", "seen", *chance, rest, left, others, rule, **told)


def _listed(arms: list[str]) -> object:
    return listed([arm_message(arm).model_dump() for arm in arms])


def _limit(arm: str, rates: list[_Rate]) -> Finding:
    """The lowest rate at which an arm is saturated, or what is known of the highest one."""
    over_it = next((each for each in rates if each.saturated), None)
    key, at = ("gave", over_it) if over_it is not None else ("kept", rates[-1])
    higher = {"one": 2 * at.rate, "other": 4 * at.rate}
    advice = detail(_NAME, "limit_higher", **higher) if over_it is None else None
    below = None
    if over_it is None and at.open:
        lower = detail(_NAME, "limit_lower") if at.alone is None else None
        key, advice = "open", sentences([detail(_NAME, "limit_longer"), lower])
        sustained = max((each.rate for each in rates if not each.open), default=None)
        below = None if sustained is None else detail(_NAME, "limit_below", rate=sustained)
    told: dict[str, object] = {"arm": arm_message(arm).model_dump(), **at.told}
    if key == "open":
        told["half"] = detail(_NAME, at.half).model_dump()
    text = detail(_NAME, f"limit_{key}", **told)
    queued = detail(_NAME, "limit_queued", **at.queues)
    more = sentences([at.rest_told, queued, *at.few, _disturbed(rates, at), below, advice])
    return Finding(id=f"limit_{arm.replace('.', '_')}", verdict=None, text=text, more=more)


def _disturbed(rates: list[_Rate], at: _Rate) -> Message | None:
    """At which rates, of those that tell the limit, others kept cores busy."""
    told = [f"{each.rate:g}" for each in rates if each.busy and each.rate <= at.rate]
    return detail(_NAME, "limit_busy", rates=listed(told)) if told else None
