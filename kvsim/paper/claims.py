"""A claim: what the paper prints, what we find over several seeds, and whether the two agree.

ours     x    x x   x        one value for each seed; a closed form has one value
mean         ▲
paper            ●
verdict      ◄───►           within the tolerance?
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, stdev
from typing import Any, Literal

# How a tolerance is meant: see Tolerance.
Kind = Literal["exact", "absolute", "relative", "at_least", "at_most", "covers", "none"]
Unit = Literal["bytes", "gib", "gb", "slots", "percent", "requests", "ratio"]
# printed: the number itself. derived: a ratio of printed ones. said: words without a number.
Basis = Literal["printed", "derived", "said"]


class Verdict(StrEnum):
    """Whether a claim holds here."""

    HOLDS = "holds"
    FAILS = "fails"
    NOT_JUDGED = "not_judged"


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far our mean may be from the paper's value.

    Attributes:
        kind: ``exact``: not at all; ``absolute``: by ``value`` in the claim's unit;
            ``relative``: by that share of the paper's; ``at_least`` and ``at_most``: no number is
            printed, ``value`` is what its words ask for; ``covers``: the paper's lies between our
            lowest and highest, or beyond by ``value`` at most; ``none``: not judged.
    """

    kind: Kind
    value: float | None = None


EXACT, NOT_JUDGED = Tolerance("exact"), Tolerance("none")


@dataclass(frozen=True, slots=True)
class Claim:
    """One number of the paper beside ours.

    Attributes:
        id: stable name, for instance ``fig2.max.live``.
        source: where the paper has it: ``Fig. 2``.
        item: what is counted, a key for a translation; ``subject``: of whom, a name.
        paper: the printed value; None where it says something in words alone.
        ours: one value for each seed, or one alone.
        seeds: that ``ours`` belongs to; empty for closed forms.
        fitted: a parameter was chosen so that this comes out; agreement proves nothing.
        assumed: a parameter that the paper does not print weighs heavily.
    """

    id: str
    source: str
    item: str
    subject: str
    unit: Unit
    paper: float | None
    ours: tuple[float, ...]
    tolerance: Tolerance
    seeds: tuple[int, ...] = ()
    basis: Basis = "printed"
    fitted: bool = False
    assumed: bool = False

    def __post_init__(self) -> None:
        if not self.ours:
            raise ValueError(f"{self.id}: nothing to compare")
        if self.seeds and len(self.seeds) != len(self.ours):
            raise ValueError(f"{self.id}: {len(self.ours)} values of {len(self.seeds)} seeds")

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        return fmean(self.ours)

    @property
    def deviation(self) -> float | None:
        """Standard deviation over seeds; None with fewer than two, or where it is a range."""
        if len(self.ours) < 2 or self.tolerance.kind == "covers":
            return None
        return stdev(self.ours)

    @property
    def verdict(self) -> Verdict:
        """Whether our mean is within the tolerance."""
        if self.tolerance.kind == "none":
            return Verdict.NOT_JUDGED
        return Verdict.HOLDS if self._holds() else Verdict.FAILS

    def _holds(self) -> bool:
        kind, allowed, mean = self.tolerance.kind, self.tolerance.value, self.mean
        if kind in ("at_least", "at_most"):
            assert allowed is not None
            return mean >= allowed if kind == "at_least" else mean <= allowed
        assert self.paper is not None
        if kind == "covers":
            beyond = allowed or 0.0
            return min(self.ours) - beyond <= self.paper <= max(self.ours) + beyond
        off = abs(mean - self.paper)
        if kind == "exact":
            return off == 0
        assert allowed is not None
        return off <= (allowed if kind == "absolute" else allowed * abs(self.paper))

    def to_json(self) -> dict[str, Any]:
        """Plain numbers and names."""
        return {
            "id": self.id,
            "source": self.source,
            "item": self.item,
            "subject": self.subject,
            "unit": self.unit,
            "basis": self.basis,
            "paper": self.paper,
            "ours": {
                "mean": self.mean,
                "deviation": self.deviation,
                "lowest": min(self.ours),
                "highest": max(self.ours),
                "values": list(self.ours),
            },
            "tolerance": {"kind": self.tolerance.kind, "value": self.tolerance.value},
            "verdict": self.verdict.value,
            "seeds": list(self.seeds),
            "fitted": self.fitted,
            "assumed": self.assumed,
        }


@dataclass(frozen=True, slots=True)
class Fitted:
    """A number that the paper does not print, and how it was chosen; ``item`` is a key."""

    item: str
    value: float


def within(value: float) -> Tolerance:
    """By so much in the claim's unit."""
    return Tolerance("absolute", value)


def share(value: float) -> Tolerance:
    """By such a share of the paper's value."""
    return Tolerance("relative", value)


def columns(rows: Sequence[Sequence[float]]) -> list[tuple[float, ...]]:
    """Rows of one seed each → the values of each column over seeds."""
    return list(zip(*rows, strict=True))
