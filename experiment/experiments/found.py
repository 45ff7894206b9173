"""What findings are made of: figures by cell and arm, and comparisons that heed the spread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from experiment.config import Config
from experiment.experiments.results import CellResult, FigureValue, Finding, Number, Verdict
from experiment.messages import Message, message

# With fewer repeats, two that lie apart may do so by chance: of three and three, in any order, all
# of one side come first in one case of twenty.
FEWEST = 3


@dataclass(frozen=True, slots=True)
class Faster:
    """One time or rate over another.

    Attributes:
        factor: of the medians.
        low: of the smallest repeat of the one over the largest of the other.
        high: the other way round.
        repeats: of the side that has fewer; 0 where nothing is repeated.
    """

    factor: float
    low: float
    high: float
    repeats: int

    @property
    def enough(self) -> bool:
        """Whether there are repeats enough to tell a difference from chance."""
        return self.repeats >= FEWEST

    @property
    def clear(self) -> bool:
        """Whether it is a difference: enough repeats, and those of the two do not overlap."""
        return self.enough and (self.low > 1 or self.high < 1)

    @property
    def slower(self) -> bool:
        """Of a rate: clearly less than the other."""
        return self.clear and self.factor < 1

    @property
    def told(self) -> dict[str, object]:
        """For a text: the factor, and how far repeats lie apart or that nobody knows."""
        return {
            "factor": self.factor,
            "spread": _spread("ratio", self.low, self.high, self.repeats),
        }


@dataclass(frozen=True, slots=True)
class Found:
    """The cells of a run, as its findings look at them."""

    config: Config
    cells: list[CellResult]

    def figure(self, cell: CellResult, arm: str, figure: str) -> FigureValue | None:
        """A figure of an arm that ended well, if it is known."""
        ran = cell.arm(arm)
        found = ran.figures.get(figure) if ran else None
        return found if found is not None and found.value is not None else None

    def value(self, cell: CellResult, arm: str, figure: str) -> Number | None:
        """Its value."""
        found = self.figure(cell, arm, figure)
        return found.value if found else None

    def with_arms(self, *arms: str) -> Iterator[CellResult]:
        """Cells in which all of these ended well."""
        return (cell for cell in self.cells if all(cell.arm(arm) for arm in arms))

    def ratio(self, cell: CellResult, figure: str, arm: str, base: str) -> Faster | None:
        """A figure of ``arm`` over that of ``base``."""
        return ratio(self.figure(cell, arm, figure), self.figure(cell, base, figure))


def ratio(one: FigureValue | None, base: FigureValue | None) -> Faster | None:
    """One figure over another; None where either is unknown or the second is nothing."""
    if one is None or base is None or one.value is None or not base.value:
        return None
    factor = one.value / base.value
    if not one.values or not base.values or min(base.values) <= 0:
        return Faster(factor, factor, factor, 0)
    low, high = min(one.values) / max(base.values), max(one.values) / min(base.values)
    return Faster(factor, low, high, min(len(one.values), len(base.values)))


def seconds_spread(figure: FigureValue) -> object:
    """Of a time, for a text: its smallest and largest repeat, or that it was not repeated."""
    return _spread("seconds", figure.low, figure.high, len(figure.values))


def rate_spread(figure: FigureValue) -> object:
    """The same of a rate."""
    return _spread("rate", figure.low, figure.high, len(figure.values))


def _spread(unit: str, low: object, high: object, repeats: int) -> object:
    if repeats < 2:
        return message("experiments.spread.none").model_dump()
    return message(f"experiments.spread.{unit}", low=low, high=high).model_dump()


def speed(faster: Faster | None) -> object:
    """For a text on something else: what the same did to the speed, where that can be told."""
    if faster is None:
        return message("experiments.speed.unknown").model_dump()
    if not faster.enough:
        return message("experiments.speed.few", n=faster.repeats, least=FEWEST).model_dump()
    key = "same" if not faster.clear else "faster" if faster.factor > 1 else "slower"
    return message(f"experiments.speed.{key}", **faster.told).model_dump()


def over(factors: Sequence[tuple[Number, float | Faster]]) -> object:
    """For a text that names one cell: the least and the most over all of them, and where.

    Of a time it is said where repeats do not tell the factor from none.
    """
    if len(factors) < 2:
        return ""
    ends = {"least": min(factors, key=_factor), "most": max(factors, key=_factor)}
    told: dict[str, object] = {}
    for name, pair in ends.items():
        told |= {name: _factor(pair), f"{name}_at": pair[0], f"{name}_note": _note(pair[1])}
    return message("experiments.over", **told).model_dump()


def _factor(pair: tuple[Number, float | Faster]) -> float:
    return pair[1].factor if isinstance(pair[1], Faster) else pair[1]


def _note(seen: float | Faster) -> object:
    if not isinstance(seen, Faster) or seen.clear:
        return ""
    return message(f"experiments.over_{'meet' if seen.enough else 'few'}").model_dump()


def timed(
    experiment: str,
    name: str,
    faster: Faster | None,
    figures: Mapping[str, object],
    shown: bool | None = None,
) -> Finding:
    """A claim about a time, with its factor and spread.

    ``shown``: whether it is; None: where the factor is clearly more than 1. Without enough repeats
    there is no verdict.
    """
    if faster is None:
        return untested(name)
    if not faster.enough:
        return few(name, faster.repeats)
    holds = faster.clear and faster.factor > 1 if shown is None else shown
    against = {} if holds else {"why": _why_not(faster)}
    return judged(experiment, name, holds, **faster.told, **figures, **against)


def _why_not(faster: Faster) -> object:
    """What speaks against a claim that a factor is more than 1."""
    key = "overlap" if not faster.clear else "small" if faster.factor > 1 else "opposite"
    return message(f"experiments.why_not.{key}").model_dump()


def sentences(texts: Sequence[Message]) -> Message:
    """Several texts as one, in their order."""
    text = texts[0]
    for other in texts[1:]:
        text = message("experiments.sentences", one=text.model_dump(), other=other.model_dump())
    return text


def few(name: str, repeats: int) -> Finding:
    """A claim about a time that was not repeated often enough for a verdict."""
    key = "one" if repeats < 2 else "few"
    text = message(f"experiments.repeats_{key}", n=repeats, least=FEWEST)
    return Finding(id=name, verdict="untested", text=text)


def judged(experiment: str, name: str, shown: bool, **figures: object) -> Finding:
    """A claim that this run shows or does not: a text for either."""
    return judged_as(experiment, name, name, shown, **figures)


def judged_as(experiment: str, name: str, text: str, shown: bool, **figures: object) -> Finding:
    """The same where several findings share the texts of the name ``text``."""
    verdict: Verdict = "shown" if shown else "not_shown"
    return _finding(experiment, name, verdict, f"{text}_{verdict}", figures)


def fact(experiment: str, name: str, key: str, **figures: object) -> Finding:
    """What was seen, without a claim."""
    return _finding(experiment, name, None, f"{name}_{key}", figures)


def untested(name: str) -> Finding:
    """A finding for which the figures are not there."""
    return Finding(id=name, verdict="untested", text=message("experiments.untested"))


def _finding(
    experiment: str, name: str, verdict: Verdict | None, key: str, figures: dict[str, object]
) -> Finding:
    """Its text is ``experiments.<experiment>.<key>``, with underscores for hyphens."""
    table = experiment.replace("-", "_")
    text = message(f"experiments.{table}.{key}", **figures)
    return Finding(id=name, verdict=verdict, text=text)
