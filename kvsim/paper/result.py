"""All claims, fitted parameters, and what is not checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kvsim.paper.claims import FittedParameter, PaperClaim, Verdict
from kvsim.paper.memory import closed_form_claims, serving_claims
from kvsim.paper.structure import (
    block_size_claims,
    chat_claims,
    overhead_claims,
    sharing_claims,
)
from kvsim.paper.workloads import fitted
from kvsim.planning.preemption_cost import COPY_S

# Results that lengths and memory do not determine; translation keys of the reasons.
UNCHECKED = (
    "fig1", "fig2_paged_parts", "fig12", "fig13_alpaca", "fig14", "fig15_beams", "fig16",
    "fig17_rate", "fig15_sharegpt", "fig18a", "fig18b_speed", "fig19_seconds", "lengths",
)  # fmt: skip
FORMAT = 1
Part = Callable[[Sequence[int]], list[PaperClaim]]
PARTS: tuple[Part, ...] = (
    lambda _: closed_form_claims(),
    serving_claims,
    sharing_claims,
    chat_claims,
    block_size_claims,
    overhead_claims,
)


@dataclass(frozen=True, slots=True)
class PaperResult:
    """All claims with their context."""

    claims: tuple[PaperClaim, ...]
    fitted: tuple[FittedParameter, ...]
    unchecked: tuple[str, ...]
    seeds: tuple[int, ...]

    @property
    def failed(self) -> tuple[PaperClaim, ...]:
        """Claims outside their tolerance."""
        return tuple(each for each in self.claims if each.verdict is Verdict.FAILS)

    def to_json(self) -> dict[str, Any]:
        """Return JSON data."""
        return {
            "format": FORMAT,
            "paper": "arXiv 2309.06180",
            "seeds": list(self.seeds),
            "claims": [each.to_json() for each in self.claims],
            "fitted": [{"item": each.item, "value": each.value} for each in self.fitted],
            "unchecked": list(self.unchecked),
        }


def claims_by_part(seeds: Sequence[int]) -> Iterator[list[PaperClaim]]:
    """Yield the claims of each of the ``len(PARTS)`` parts.

    Raises:
        ValueError: no seeds.
    """
    if not seeds:
        raise ValueError("no seeds")
    for part in PARTS:
        yield part(seeds)


def paper_result(claims: Sequence[PaperClaim], seeds: Sequence[int]) -> PaperResult:
    """Combine claims with fitted parameters and unchecked results."""
    chosen = (*fitted(), FittedParameter("copy_s", COPY_S))
    return PaperResult(tuple(claims), chosen, UNCHECKED, tuple(seeds))
