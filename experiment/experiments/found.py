"""What findings are made of: figures by cell and arm, and comparisons that heed the spread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from experiment.config import Config
from experiment.experiments.results import CellResult, FigureValue, Finding, Number, Verdict
from experiment.messages import message


@dataclass(frozen=True, slots=True)
class Faster:
    """One time or rate over another: ``factor`` of the medians.

    ``clear``: the repeats of the two do not overlap.
    """

    factor: float
    clear: bool


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
    apart = one.values and base.values
    clear = bool(apart) and (
        min(one.values) > max(base.values) or max(one.values) < min(base.values)
    )
    return Faster(one.value / base.value, clear)


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
