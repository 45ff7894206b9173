"""Figures by cell and arm, and comparisons of two figures with their spread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from experiment.analysis.experiment_results import CellResult, FigureValue, Number
from experiment.config.schema import ROUNDS_ENOUGH, Config, is_within_margin, percent_of
from experiment.text.messages import Message, message
from kvsim.sim.metrics import SimResult

# Place of a figure: cell (None: no cell has the arms), arm and name.
Place = tuple[CellResult | None, str, str]
Simulate = Callable[[CellResult, str, Mapping[str, Any]], SimResult | Message]
# Minimum number of repeats. With three each, two equal arms do not overlap in one case of ten by
# chance. Three rounds agree by chance in one case of four, so with fewer than ROUNDS_ENOUGH rounds
# the margin of processes that are not interleaved applies.
FEWEST = 3


@dataclass(frozen=True, slots=True)
class Faster:
    """One time or rate over another.

    Attributes:
        factor: ratio of the medians; if interleaved, the median of the rounds' ratios.
        low: smallest repeat of the first over largest of the second; if interleaved, the smallest
            ratio of a round.
        high: largest over smallest; if interleaved, the largest ratio of a round.
        repeats: the smaller number of repeats; 0 without repeats.
        busy: whether there was background load while either ran, which may slow all repeats of one
            side alike.
        margin: relative difference that two processes of one arm may have in spite of their
            repeats; 0 if both sides were timed in one process.
        turns: whether the two were interleaved.
    """

    factor: float
    low: float
    high: float
    repeats: int
    busy: bool
    margin: float = 0.0
    turns: bool = False

    @property
    def lacking(self) -> Literal["few", "busy"] | None:
        """Why it is inconclusive: too few repeats or background load; otherwise None."""
        return "few" if self.repeats < FEWEST else "busy" if self.busy else None

    @property
    def enough(self) -> bool:
        """Whether there are enough repeats, and no background load."""
        return self.lacking is None

    @property
    def clear(self) -> bool:
        """Whether the two sides are distinguishable."""
        return self.enough and self.tie is None

    @property
    def tie(self) -> Literal["overlap", "margin"] | None:
        """Why the sides are not distinguishable: overlapping repeats or the margin; or None."""
        if self.low <= 1 <= self.high:
            return "overlap"
        return "margin" if is_within_margin(self.factor, 1, self.margin) else None

    @property
    def reason(self) -> Message | None:
        """Why it is inconclusive, or the sides are not distinguishable; otherwise None."""
        name = self.lacking or self.tie
        params: dict[str | None, dict[str, float]] = {
            "few": {"n": self.repeats, "least": FEWEST},
            "margin": {"percent": percent_of(self.margin)},
        }
        return message(f"experiments.why.{name}", **params.get(name, {})) if name else None


@dataclass(frozen=True, slots=True)
class Found:
    """The cells of a run, for its findings.

    ``random_weights``: whether a model has random weights. ``simulate``: predicts an arm in a cell
    with other values of config keys; None: no predictions.
    """

    config: Config
    cells: list[CellResult]
    random_weights: bool = False
    simulate: Simulate | None = None

    def figure(self, cell: CellResult | None, arm: str, figure: str) -> FigureValue | None:
        """A figure of a successful arm; None if unknown."""
        ran = cell.arm(arm) if cell else None
        found = ran.figures.get(figure) if ran else None
        return found if found is not None and found.value is not None else None

    def value(self, cell: CellResult | None, arm: str, figure: str) -> Number | None:
        """Value of :meth:`figure`."""
        found = self.figure(cell, arm, figure)
        return found.value if found else None

    def with_arms(self, *arms: str) -> Iterator[CellResult]:
        """Cells in which all of these arms succeeded."""
        return (cell for cell in self.cells if all(cell.arm(arm) for arm in arms))

    def last(self, *arms: str) -> CellResult | None:
        """The last cell in which all of these arms succeeded."""
        return next(reversed(list(self.with_arms(*arms))), None)

    def ratio(self, cell: CellResult | None, figure: str, arm: str, base: str) -> Faster | None:
        """A figure of ``arm`` over that of ``base``."""
        return self.compared((cell, arm, figure), (cell, base, figure))

    def compared(self, one: Place, base: Place) -> Faster | None:
        """A figure over another one, of any cells and arms."""
        sides, places = (self.figure(*one), self.figure(*base)), (one, base)
        busy = any(self.busy(cell, arm) for cell, arm, _ in places)
        if len({(cell.index, arm) for cell, arm, _ in places if cell}) == 1:  # one process
            return ratio(*sides, busy=busy)
        turns, section = _took_turns(*places), self.config.experiment
        if turns and all(len(side.values) >= ROUNDS_ENOUGH for side in sides if side):
            return ratio(*sides, busy=busy, margin=section.interleaved_margin, turns=True)
        return ratio(*sides, busy=busy, margin=section.process_margin, turns=turns)

    def busy(self, cell: CellResult | None, arm: str) -> bool:
        """Whether there was background load while an arm ran."""
        ran = cell.arm(arm) if cell else None
        return ran is not None and ran.others_cores is not None


def _took_turns(one: Place, base: Place) -> bool:
    """Whether the two were interleaved, and all repeats are known."""
    groups = {_group(*place) for place in (one, base)}
    return len(groups) == 1 and None not in groups


def _group(cell: CellResult | None, arm: str, figure: str) -> int | None:
    ran = cell.arm(arm) if cell else None
    known = ran.figures.get(figure) if ran else None
    whole = ran is not None and known is not None and len(known.values) == ran.repeats
    return ran.turns if ran is not None and whole else None


def ratio(
    one: FigureValue | None,
    base: FigureValue | None,
    *,
    busy: bool,
    margin: float = 0.0,
    turns: bool = False,
) -> Faster | None:
    """One figure over another; None if either is unknown or the second is 0.

    ``busy``, ``margin`` and ``turns``: see :class:`Faster`.
    """
    if one is None or base is None or one.value is None or not base.value:
        return None
    factor = one.value / base.value
    if not one.values or not base.values or min(base.values) <= 0:
        return Faster(factor, factor, factor, 0, busy, margin)
    if turns and len(one.values) == len(base.values):
        rounds = [each / other for each, other in zip(one.values, base.values, strict=True)]
        factor, low, high = median(rounds), min(rounds), max(rounds)
        return Faster(factor, low, high, len(rounds), busy, margin, turns=True)
    low, high = min(one.values) / max(base.values), max(one.values) / min(base.values)
    return Faster(factor, low, high, min(len(one.values), len(base.values)), busy, margin)
