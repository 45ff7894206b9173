"""What is commonly claimed of paging, each claim with the figure that the experiments found here.

    experiments ─► found ─► a figure of each claim ─► shown: it reaches what is claimed
                                                      not shown: it stays below
                                                      untested: the figure is not there

A claim of a range is shown from its lower end on. Only counts and times of this run are used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from experiment.experiments.found import Found
from experiment.experiments.results import CellResult, Verdict

Kind = Literal["share", "ratio", "count", "fine"]
Figure = Callable[[Found], float | None]


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim.

    Attributes:
        name: its text is ``claims.<name>``.
        experiment: that shows it; None: no experiment here does.
        least: from where on it is shown; of ``at_most`` claims, below which.
    """

    name: str
    experiment: str | None
    kind: Kind
    least: float
    figure: Figure
    at_most: bool = False


@dataclass(frozen=True, slots=True)
class Judged:
    """A claim with its figure here; None where there is none."""

    claim: Claim
    value: float | None
    verdict: Verdict


def judge(found: Mapping[str, Found]) -> list[Judged]:
    """Every claim, from the experiments that were run, by their names."""
    return [_judge(claim, found.get(claim.experiment or "")) for claim in CLAIMS]


def needed() -> tuple[str, ...]:
    """Experiments that the claims are judged by, each once."""
    names = (claim.experiment for claim in CLAIMS)
    return tuple(dict.fromkeys(name for name in names if name is not None))


def _judge(claim: Claim, found: Found | None) -> Judged:
    value = claim.figure(found) if found is not None else None
    if value is None:
        return Judged(claim, None, "untested")
    reached = value < claim.least if claim.at_most else value >= claim.least
    return Judged(claim, value, "shown" if reached else "not_shown")


def _last(found: Found, *arms: str) -> CellResult | None:
    return next(reversed(list(found.with_arms(*arms))), None)


def _waste(found: Found, arm: str) -> float | None:
    """Waste of an arm where the most requests are offered."""
    cell = _last(found, "slabs", "paged")
    return found.value(cell, arm, "waste") if cell else None


def _used(found: Found) -> float | None:
    waste = _waste(found, "paged")
    return None if waste is None else 1 - waste


def _saved(found: Found) -> float | None:
    """Handed out in blocks instead of slabs, where as many requests run in both."""
    for cell in found.with_arms("slabs", "paged"):
        alike = [found.value(cell, arm, "steps") for arm in ("slabs", "paged")]
        slabs, paged = (found.value(cell, arm, "waste") for arm in ("slabs", "paged"))
        if alike[0] == alike[1] and slabs is not None and paged is not None and paged < 1:
            return 1 - (1 - slabs) / (1 - paged)
    return None


def _finding(name: str, figure: str) -> Figure:
    """A number out of a finding's text."""

    def value(found: Found) -> float | None:
        from experiment.experiments.registry import find_experiment

        spec = find_experiment(found.config.experiment.name or "")
        findings = {finding.id: finding for finding in spec.findings(found)}
        number = findings[name].text.params.get(figure) if name in findings else None
        return float(number) if isinstance(number, int | float) else None

    return value


def _throughput(found: Found) -> float | None:
    """Our paged engine with the most at a time, over Transformers one request after another."""
    first, last = _last_first(found)
    one = found.value(first, "contiguous.sequential", "tokens_per_s") if first else None
    many = found.value(last, "paged", "tokens_per_s") if last else None
    return many / one if one and many else None


def _last_first(found: Found) -> tuple[CellResult | None, CellResult | None]:
    return next(found.with_arms("contiguous.sequential"), None), _last(found, "paged")


def _most_saved(found: Found) -> float | None:
    shares = (found.value(cell, "paged", "saved") for cell in found.with_arms("paged"))
    return max((share for share in shares if share is not None), default=None)


def _refused(found: Found) -> float | None:
    """Steps in which the arena refused for its holes, if the paged arm served everybody."""
    cell = _last(found, "paged")
    return found.value(cell, "paged", "first_fit_refused_steps") if cell else None


def _nothing(_: Found) -> None:
    return None


CLAIMS = (
    Claim("saved", "capacity", "share", 0.70, _saved),
    Claim("context", "context", "ratio", 2.0, _finding("together", "factor")),
    Claim("at_once", "capacity", "ratio", 3.0, _finding("at_once", "factor")),
    Claim("throughput", "concurrency", "ratio", 24.0, _throughput),
    Claim("used", "capacity", "share", 0.96, _used),
    Claim("wasted", "capacity", "share", 0.60, lambda found: _waste(found, "slabs")),
    Claim("lookup", "lookup", "fine", 0.01, _finding("of_step", "share"), at_most=True),
    Claim("holes", "holes", "count", 1, _refused),
    Claim("samples", "parallel-sampling", "share", 0.06, _most_saved),
    Claim("beams", "beam", "share", 0.37, _most_saved),
    Claim("steadier", None, "share", 0, _nothing),
)
