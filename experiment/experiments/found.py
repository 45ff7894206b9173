"""What findings are made of: figures by cell and arm, and comparisons that heed the spread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from experiment.analysis.experiment_results import CellResult, FigureValue, Finding, Number, Verdict
from experiment.analysis.gains import BUSY
from experiment.config.schema import ROUNDS_ENOUGH, Config, closer, percent_of
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
    def meet(self) -> Literal["overlap", "rounds", "margin"] | None:
        """What keeps them from being apart; None: nothing.

        Repeats that overlap, rounds of which one says the opposite of another, or the margin.
        """
        if self.low <= 1 <= self.high:
            return "rounds" if self.turns else "overlap"
        return "margin" if closer(self.factor, 1, self.margin) else None

    @property
    def met(self) -> Message | None:
        """The same for a text, as part of a sentence; None where they are apart."""
        return message(f"experiments.meet.{self.meet}", **self._percent) if self.meet else None

    @property
    def beside(self) -> object:
        """The same beside a factor among others, and why it decides nothing; else nothing."""
        name = self.lacking or self.meet
        told = {} if self.lacking else self._percent
        return message(f"experiments.over_{name}", **told).model_dump() if name else ""

    @property
    def _percent(self) -> dict[str, object]:
        return {"percent": percent_of(self.margin)} if self.meet == "margin" else {}

    @property
    def _unit(self) -> str:
        return "rounds" if self.turns else "ratio"

    @property
    def slower(self) -> bool:
        """Of a rate: clearly less than the other."""
        return self.clear and self.factor < 1

    @property
    def told(self) -> dict[str, object]:
        """For a text: the factor, and how far repeats lie apart or that nobody knows."""
        met = self.met if self.enough else None
        return {
            "factor": self.factor,
            "spread": _spread(self._unit, self.low, self.high, self.repeats),
            **({"met": met.model_dump()} if met else {}),
        }


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
            return ratio(*sides, busy=busy, margin=asked.apart_in_turns, turns=True)
        return ratio(*sides, busy=busy, margin=asked.apart, turns=turns)

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


def speed(faster: Faster | None) -> Message:
    """Beside a text on something else: what the same did to the speed, where that can be told."""
    if faster is None:
        return message("experiments.speed.unknown")
    if faster.lacking:
        told = {"n": faster.repeats, "least": FEWEST}
        return message(f"experiments.speed.{faster.lacking}", **told)
    key = "same" if not faster.clear else "faster" if faster.factor > 1 else "slower"
    return message(f"experiments.speed.{key}", **faster.told)


def took_longer(found: Found, cell: CellResult, faster: Faster | None) -> bool:
    """Whether blocks are done later than slabs: clearly; where times decide nothing, in steps."""
    if faster is not None and faster.tells:
        return faster.slower
    steps = _steps_of_both(found, cell)
    return steps is not None and steps["blocks"] > steps["slabs"]


def in_steps(found: Found, cell: CellResult, faster: Faster | None) -> Message | None:
    """Where times decide nothing, what does."""
    steps = _steps_of_both(found, cell)
    if (faster is not None and faster.tells) or steps is None:
        return None
    return message("experiments.speed.steps", **steps)


def _steps_of_both(found: Found, cell: CellResult) -> dict[str, Number] | None:
    blocks, slabs = (found.value(cell, arm, "steps") for arm in ("paged", "slabs"))
    return None if blocks is None or slabs is None else {"blocks": blocks, "slabs": slabs}


def over(factors: Sequence[tuple[Number, float | Faster]]) -> Message | None:
    """Beside a text that names one cell: the least and the most over all of them, and where.

    Of a time it is said where repeats do not tell the factor from none.
    """
    if len(factors) < 2:
        return None
    ends = {"least": min(factors, key=_factor), "most": max(factors, key=_factor)}
    told: dict[str, object] = {}
    for name, pair in ends.items():
        told |= {name: _factor(pair), f"{name}_at": pair[0], f"{name}_note": beside(pair[1])}
    return message("experiments.over", **told)


def _factor(pair: tuple[Number, float | Faster]) -> float:
    return pair[1].factor if isinstance(pair[1], Faster) else pair[1]


def beside(seen: float | Faster) -> object:
    """Beside a factor among others: what keeps it from being a difference; else nothing."""
    return seen.beside if isinstance(seen, Faster) else ""


def timed(
    experiment: str,
    name: str,
    faster: Faster | None,
    figures: Mapping[str, object],
    *more: Message | None,
    shown: bool | None = None,
) -> Finding:
    """A claim about a time, with its factor and spread, and what else is to be said.

    ``shown``: whether it is; None: where the factor is clearly more than 1. Without enough repeats,
    or of an arm that ran on a busy machine, there is no verdict.
    """
    if faster is None:
        return untested(name)
    if not faster.enough:
        return undecided(name, faster)
    holds = faster.clear and faster.factor > 1 if shown is None else shown
    against = {} if holds else {"why": _why_not(faster)}
    return judged(experiment, name, holds, *more, **faster.told, **figures, **against)


def _why_not(faster: Faster) -> object:
    """What speaks against a claim that a factor is more than 1."""
    if faster.met is not None:
        return message("experiments.why_not.meet", met=faster.met.model_dump()).model_dump()
    key = "small" if faster.factor > 1 else "opposite"
    return message(f"experiments.why_not.{key}").model_dump()


def param(label: Message | str) -> object:
    """A name as a text takes it for a part of its own."""
    return label.model_dump() if isinstance(label, Message) else label


def listed(items: Iterable[object]) -> object:
    """Names or numbers as one, for a text; what stands between them is the language's."""
    said, *others = [*items] or [""]
    for other in others:
        said = message("experiments.and", one=said, other=other).model_dump()
    return said


def sentences(texts: Sequence[Message | None]) -> Message | None:
    """Several texts as one, in their order; those that there are not are left out."""
    known = [text for text in texts if text is not None]
    if not known:
        return None
    text = known[0]
    for other in known[1:]:
        text = message("experiments.sentences", one=text.model_dump(), other=other.model_dump())
    return text


def followed(finding: Finding, *more: Message | None) -> Finding:
    """A finding with more to be said below it, whatever its verdict."""
    return finding.model_copy(update={"more": sentences([finding.more, *more])})


def detail(experiment: str, key: str, **figures: object) -> Message:
    """A text of an experiment that stands below a finding."""
    return message(f"experiments.{experiment.replace('-', '_')}.{key}", **figures)


def undecided(name: str, faster: Faster) -> Finding:
    """A claim about a time that decides nothing, with the reason."""
    return busy(name) if faster.lacking == "busy" else few(name, faster.repeats)


def busy(name: str) -> Finding:
    """A claim about a time of an arm that ran while other programs kept cores busy."""
    text, more = message(BUSY), message("experiments.busy_advice")
    return Finding(id=name, verdict="untested", text=text, more=more)


def few(name: str, repeats: int) -> Finding:
    """A claim about a time that was not repeated often enough for a verdict."""
    text, more = few_told(repeats)
    return Finding(id=name, verdict="untested", text=text, more=more)


def few_told(repeats: int) -> tuple[Message, Message]:
    """That so many repeats are too few, and what to do."""
    key = "one" if repeats < 2 else "few"
    text = message(f"experiments.repeats_{key}", n=repeats)
    return text, message("experiments.repeats_advice", least=FEWEST)


def judged(
    experiment: str, name: str, shown: bool, *more: Message | None, **figures: object
) -> Finding:
    """A claim that this run shows or does not, a text for either, and what else is to be said."""
    return judged_as(experiment, name, name, shown, *more, **figures)


def judged_as(
    experiment: str, name: str, text: str, shown: bool, *more: Message | None, **figures: object
) -> Finding:
    """The same where several findings share the texts of the name ``text``."""
    verdict: Verdict = "shown" if shown else "not_shown"
    said = detail(experiment, f"{text}_{verdict}", **figures)
    return Finding(id=name, verdict=verdict, text=said, more=sentences(more))


def fact(experiment: str, name: str, key: str, *more: Message | None, **figures: object) -> Finding:
    """What was seen, without a claim."""
    said = detail(experiment, f"{name}_{key}", **figures)
    return Finding(id=name, verdict=None, text=said, more=sentences(more))


def untested(name: str, why: Message | None = None) -> Finding:
    """A finding for which the figures are not there.

    ``why``: the reason, one sentence; None: an arm did not run, or did not end well.
    """
    return Finding(id=name, verdict="untested", text=why or message("experiments.untested"))
