"""All claims, fitted parameters, and what is not checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
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
    """Everything that was compared; of a check that was interrupted, how many parts that is."""

    claims: tuple[PaperClaim, ...]
    fitted: tuple[FittedParameter, ...]
    unchecked: tuple[str, ...]
    seeds: tuple[int, ...]
    interrupted: dict[str, int] | None = None

    @property
    def failed(self) -> tuple[PaperClaim, ...]:
        """Claims outside their tolerance."""
        return tuple(each for each in self.claims if each.verdict is Verdict.FAILS)

    def to_json(self) -> dict[str, Any]:
        """Plain numbers and names."""
        broken_off = {"interrupted": self.interrupted} if self.interrupted else {}
        return {
            "format": FORMAT,
            "paper": "arXiv 2309.06180",
            "seeds": list(self.seeds),
            "claims": [each.to_json() for each in self.claims],
            "fitted": [{"item": each.item, "value": each.value} for each in self.fitted],
            "unchecked": list(self.unchecked),
            **broken_off,
        }


# Given the number of parts, shows that one more has ended.
Progress = Callable[[int], AbstractContextManager[Callable[[], None]]]


def check_paper(
    seeds: Sequence[int], progress: Progress = lambda _: nullcontext(lambda: None)
) -> PaperResult:
    """Compare the paper's numbers with ours, each over all seeds.

    Raises:
        ValueError: no seeds.
        KeyboardInterrupt: before a part had ended; later it ends the check, see ``interrupted``.
    """
    parts: list[list[PaperClaim]] = []
    try:
        with progress(len(PARTS)) as advance:
            for part in claims_by_part(seeds):
                parts.append(part)
                advance()
    except KeyboardInterrupt:
        if not parts:
            raise
    result = paper_result([claim for part in parts for claim in part], seeds)
    done = {"done": len(parts), "of": len(PARTS)}
    return result if len(parts) == len(PARTS) else replace(result, interrupted=done)


def claims_by_part(seeds: Sequence[int]) -> Iterator[list[PaperClaim]]:
    """The claims of one part after another, as they are found; there are ``len(PARTS)``.

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
