"""Display order of arms, independent of the order in which they ran.

plain Transformers ─► slabs ─► paged ─► external engines ─► user-defined arms
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
    """Sort by arm; arms that are not in the ladder come last, in their given order."""
    return sorted(things, key=lambda one: _RUNGS.get(arm(one), len(LADDER)))


def in_order(arms: Iterable[str]) -> list[str]:
    """Sort names of arms by the ladder."""
    return by_ladder(arms, str)
