"""Figures by cell and arm, and comparisons of two that heed their spread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from experiment.analysis.experiment_results import CellResult, FigureValue, Number
from experiment.config.schema import ROUNDS_ENOUGH, Config, is_within_margin, percent_of
from experiment.text.messages import Message, message
from kvsim.sim.metrics import SimResult

# Where a figure is to be found: its cell, its arm and its name.
Place = tuple[CellResult, str, str]
Simulate = Callable[[CellResult, str, Mapping[str, Any]], SimResult | Message]
# With fewer repeats, two that lie apart may do so by chance: of three and three, in any order, all
# of one side come first in one case of twenty. Of rounds three say the same in one case of four, so
# fewer than ROUNDS_ENOUGH have the margin of processes that took no turns.
FEWEST = 3


@dataclass(frozen=True, slots=True)
class Faster:
    """One time or rate over another.

    Attributes:
        factor: of the medians; where the two took turns, the median of the rounds' factors.
        low: of the smallest repeat of the one over the largest of the other; in turns, of a round.
        high: the other way round; in turns, the largest of a round.
        repeats: of the side that has fewer; 0 where nothing is repeated.
        busy: whether other programs kept cores busy while either of the two ran, which may slow
            all repeats of the one alike.
        margin: as a share, what two processes of one arm may differ by, whatever their repeats
            say; 0 where both sides were timed in one process.
        turns: whether the two took turns.
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
        """Why it decides nothing: too few repeats, or a busy machine; None where it does."""
        return "few" if self.repeats < FEWEST else "busy" if self.busy else None

    @property
    def enough(self) -> bool:
        """Whether repeats can tell a difference from chance, and from what other programs did."""
        return self.lacking is None

    @property
    def tells(self) -> bool:
        """Whether it says which is faster, or that neither is: repeats do, and not the margin."""
        return self.enough and self.meet != "margin"

    @property
    def clear(self) -> bool:
        """Whether it is a difference: it decides, and nothing keeps the two from being apart."""
        return self.enough and self.meet is None

    @property
    def meet(self) -> Literal["overlap", "margin"] | None:
        """What keeps them from being apart: repeats that disagree, or the margin; None: nothing."""
        if self.low <= 1 <= self.high:
            return "overlap"
        return "margin" if is_within_margin(self.factor, 1, self.margin) else None

    @property
    def reason(self) -> Message | None:
        """Why it decides nothing, or what keeps the two from being apart; else None."""
        name = self.lacking or self.meet
        told: dict[str | None, dict[str, float]] = {
            "few": {"n": self.repeats, "least": FEWEST},
            "margin": {"percent": percent_of(self.margin)},
        }
        return message(f"experiments.why.{name}", **told.get(name, {})) if name else None

    @property
    def slower(self) -> bool:
        """Of a rate: clearly less than the other."""
        return self.clear and self.factor < 1


@dataclass(frozen=True, slots=True)
class Found:
    """The cells of a run, as its findings look at them.

    ``random_weights``: whether any of its models has weights that nobody trained. ``simulate``:
    what kvsim says of an arm in a cell, were these keys of its config so; None: it is not asked.
    """

    config: Config
    cells: list[CellResult]
    random_weights: bool = False
    simulate: Simulate | None = None

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

    def last(self, *arms: str) -> CellResult | None:
        """The last cell in which all of these ended well."""
        return next(reversed(list(self.with_arms(*arms))), None)

    def ratio(self, cell: CellResult, figure: str, arm: str, base: str) -> Faster | None:
        """A figure of ``arm`` over that of ``base``."""
        return self.compared((cell, arm, figure), (cell, base, figure))

    def compared(self, one: Place, base: Place) -> Faster | None:
        """A figure over another one, of whatever cells and arms."""
        busy = any(self.busy(cell, arm) for cell, arm, _ in (one, base))
        turns, asked = _took_turns(one, base), self.config.experiment
        sides = self.figure(*one), self.figure(*base)
        if _one_process(one, base):
            return ratio(*sides, busy=busy)
        if turns and all(len(side.values) >= ROUNDS_ENOUGH for side in sides if side):
            return ratio(*sides, busy=busy, margin=asked.interleaved_margin, turns=True)
        return ratio(*sides, busy=busy, margin=asked.process_margin, turns=turns)

    def busy(self, cell: CellResult, arm: str) -> bool:
        """Whether other programs were seen to keep cores busy while an arm ran."""
        ran = cell.arm(arm)
        return ran is not None and ran.others_cores is not None


def _one_process(one: Place, base: Place) -> bool:
    """Whether both are of one arm in one cell."""
    return one[0].index == base[0].index and one[1] == base[1]


def _took_turns(one: Place, base: Place) -> bool:
    """Whether both ran each of their repeats before either ran the next one, and all are known."""
    groups = {_group(*place) for place in (one, base)}
    return len(groups) == 1 and None not in groups


def _group(cell: CellResult, arm: str, figure: str) -> int | None:
    ran = cell.arm(arm)
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
    """One figure over another; None where either is unknown or the second is nothing.

    ``busy``: other programs kept cores busy while one of the two ran. ``margin``: see
    :class:`Faster`. ``turns``: repeats of the same number are neighbours in time.
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


def took_longer(found: Found, cell: CellResult, faster: Faster | None) -> bool:
    """Whether blocks are done later than slabs: clearly; where times decide nothing, in steps."""
    if faster is not None and faster.tells:
        return faster.slower
    blocks, slabs = (found.value(cell, arm, "steps") for arm in ("paged", "slabs"))
    return blocks is not None and slabs is not None and blocks > slabs
