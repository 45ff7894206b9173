"""All claims, fitted parameters, and what is not checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from kvsim.paper.claims import PaperClaim, Verdict
from kvsim.paper.memory import closed_form_claims, serving_claims
from kvsim.paper.structure import (
    block_size_claims,
    chat_claims,
    overhead_claims,
    sharing_claims,
)
from kvsim.paper.workloads import fitted

# Results that lengths and memory do not determine; translation keys of the reasons.
UNCHECKED = (
    "fig1", "fig2_paged_parts", "speed", "fig13_alpaca", "fig15_beams", "fig15_sharegpt",
    "fig17_rate", "fig19_seconds", "lengths",
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
            "fitted": [{"item": item, "value": value} for item, value in fitted().items()],
            "unchecked": list(UNCHECKED),
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
    if not seeds:
        raise ValueError("no seeds")
    claims: list[PaperClaim] = []
    done = 0
    try:
        with progress(len(PARTS)) as advance:
            for part in PARTS:
                claims += part(seeds)
                done += 1
                advance()
    except KeyboardInterrupt:
        if not done:
            raise
    interrupted = {"done": done, "of": len(PARTS)} if done < len(PARTS) else None
    return PaperResult(tuple(claims), tuple(seeds), interrupted)
