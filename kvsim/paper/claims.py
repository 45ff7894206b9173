"""A claim: the paper's value, our values over several seeds, and a verdict.

ours     x    x x   x        one value per seed; a closed form has one value
mean         ▲
paper            ●
verdict      ◄───►           within the tolerance?
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, stdev
from typing import Any, Literal

# How a tolerance applies, see Tolerance.
ToleranceKind = Literal["exact", "absolute", "relative", "at_least", "at_most", "covers", "none"]
Unit = Literal["bytes", "gib", "gb", "slots", "percent", "requests", "ratio"]
# printed: the number itself. derived: a ratio of printed numbers. said: words without a number.
Basis = Literal["printed", "derived", "said"]


class Verdict(StrEnum):
    """Whether a claim holds."""

    HOLDS = "holds"
    FAILS = "fails"
    NOT_JUDGED = "not_judged"


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Tolerance of our mean around the paper's value.

    Attributes:
        kind: ``exact``: equal; ``absolute``: within ``value`` in the claim's unit;
            ``relative``: within that share of the paper's value; ``at_least`` and ``at_most``: the
            paper has no number, ``value`` is a bound from its words; ``covers``: the paper's value
            is within our range, extended by ``value``; ``none``: not judged.
    """

    kind: ToleranceKind
    value: float | None = None


EXACT, NOT_JUDGED = Tolerance("exact"), Tolerance("none")


@dataclass(frozen=True, slots=True)
class PaperClaim:
    """One value of the paper compared with ours.

    Attributes:
        id: stable name, e.g. ``fig2.max.live``.
        source: location in the paper: ``Fig. 2``.
        item: the quantity, a translation key; ``subject``: the name of the system.
        paper: the printed value; None if the paper has words only.
        ours: one value per seed, or one in all.
        seeds: seeds of ``ours``; empty for closed forms.
        fitted: a parameter was fitted to this value, so agreement is no evidence.
        assumed: depends strongly on a parameter that the paper does not print.
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

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        return fmean(self.ours)

    @property
    def deviation(self) -> float | None:
        """Standard deviation over seeds; None with fewer than two, or for a range."""
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
        """Return JSON data."""
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
