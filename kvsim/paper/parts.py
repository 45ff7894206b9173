"""All claims together, what was fitted, and what cannot be checked here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from kvsim.paper.claims import Claim, Fitted, Verdict
from kvsim.paper.memory import closed, served
from kvsim.paper.structure import (
    block_size_claims,
    chat_claims,
    overhead_claims,
    sharing_claims,
)
from kvsim.paper.workloads import fitted
from kvsim.planning.preemption_cost import COPY_S

# What the paper shows and lengths and memory do not decide; keys for reasons in words.
UNCHECKED = (
    "fig1", "fig2_paged_parts", "fig12", "fig13_alpaca", "fig14", "fig15_beams", "fig16",
    "fig17_rate", "fig15_sharegpt", "fig18a", "fig18b_speed", "fig19_seconds", "lengths",
)  # fmt: skip
FORMAT = 1
Part = Callable[[Sequence[int]], list[Claim]]
PARTS: tuple[Part, ...] = (
    lambda _: closed(),
    served,
    sharing_claims,
    chat_claims,
    block_size_claims,
    overhead_claims,
)


@dataclass(frozen=True, slots=True)
class PaperResult:
    """Everything that was compared; of a check that was interrupted, how many parts that is."""

    claims: tuple[Claim, ...]
    fitted: tuple[Fitted, ...]
    unchecked: tuple[str, ...]
    seeds: tuple[int, ...]
    interrupted: dict[str, int] | None = None

    @property
    def failed(self) -> tuple[Claim, ...]:
        """Claims outside of their tolerance."""
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
    parts: list[list[Claim]] = []
    try:
        with progress(len(PARTS)) as advance:
            for part in each_part(seeds):
                parts.append(part)
                advance()
    except KeyboardInterrupt:
        if not parts:
            raise
    result = result_of([claim for part in parts for claim in part], seeds)
    done = {"done": len(parts), "of": len(PARTS)}
    return result if len(parts) == len(PARTS) else replace(result, interrupted=done)


def each_part(seeds: Sequence[int]) -> Iterator[list[Claim]]:
    """The claims of one part after another, as they are found; there are ``len(PARTS)``.

    Raises:
        ValueError: no seeds.
    """
    if not seeds:
        raise ValueError("no seeds")
    for part in PARTS:
        yield part(seeds)


def result_of(claims: Sequence[Claim], seeds: Sequence[int]) -> PaperResult:
    """Claims with what belongs beside them."""
    chosen = (*fitted(), Fitted("copy_s", COPY_S))
    return PaperResult(tuple(claims), chosen, UNCHECKED, tuple(seeds))
