"""The order in which arms stand side by side, whatever order they ran in.

plain Transformers ─► slabs ─► paged ─► engines that are not ours ─► arms of somebody's own
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
LADDER = (
    "contiguous.sequential", "contiguous.batch", "contiguous.compiled", "contiguous.growing",
    "slabs", "paged", "transformers_paged", "vllm",
)  # fmt: skip
_RUNGS = {arm: place for place, arm in enumerate(LADDER)}


def by_ladder(things: Iterable[T], arm: Callable[[T], str]) -> list[T]:
    """Things by their arms; of arms that the ladder does not know, behind it, as they came."""
    return sorted(things, key=lambda one: _RUNGS.get(arm(one), len(LADDER)))


def in_order(arms: Iterable[str]) -> list[str]:
    """Names of arms by the ladder."""
    return by_ladder(arms, str)
