"""Every arm: what runs it, how it is called for, drawn and simulated.

plain Transformers ─► slabs ─► paged ─► engines that are not ours ─► arms of somebody's own

In this order arms stand side by side, whatever order they ran in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, TypeVar

from experiment.events import WorkloadReady
from experiment.text.messages import Message, message

T = TypeVar("T")
Simulated = Literal["one_by_one", "padded", "growing", "slabs", "paged"]


@dataclass(frozen=True, slots=True)
class Arm:
    """One way of running the same requests.

    Attributes:
        run: module and function in ``experiment.arms``; None: it has an interpreter of its own.
        group: what ``--arms`` takes, and a gate stands before; empty: its own name.
        alone: it runs by its own name alone, never with its group.
        series: its colour, mark and dashes in charts; None: the next ones that are left.
        at_once: it is handed all requests before it begins, so that none may come later.
        simulated: as what kvsim runs its requests; None: its engine decides by itself.
        refuses: why it cannot run some requests.
    """

    run: str | None
    group: str = ""
    alone: bool = False
    series: int | None = None
    at_once: bool = False
    simulated: Simulated | None = None
    refuses: Callable[[WorkloadReady], Message | None] = lambda _: None


def ends_by_length(workload: WorkloadReady) -> bool:
    """Whether requests end at the given length or at the end-of-text token alone."""
    return not workload.sampling.stop_token_ids and not workload.sampling.min_new_tokens


def _stops(workload: WorkloadReady) -> Message | None:
    return None if ends_by_length(workload) else message("skip.no_stops")


# Of most charts two arms, and the accent of a page, have the colours furthest apart.
ARMS: dict[str, Arm] = {
    "contiguous.sequential": Arm(
        "contiguous.run_sequential", "contiguous", series=3, simulated="one_by_one"
    ),
    "contiguous.batch": Arm("contiguous.run_batch", "contiguous", series=2, simulated="padded"),
    "contiguous.compiled": Arm(
        "contiguous.run_batch", "contiguous", alone=True, series=7, simulated="padded"
    ),
    "contiguous.growing": Arm(
        "contiguous.run_growing", "contiguous", series=4, simulated="growing"
    ),
    "slabs": Arm("paged.run_slabs", series=1, simulated="slabs"),
    "paged": Arm("paged.run_paged", series=0, simulated="paged"),
    "transformers_paged": Arm(
        "transformers_paged.run_transformers_paged", series=5, refuses=_stops
    ),
    "vllm": Arm(None, series=6),
}
ARM_GROUPS = {
    group: tuple(a for a, arm in ARMS.items() if (arm.group or a) == group and not arm.alone)
    for group in dict.fromkeys(arm.group or name for name, arm in ARMS.items())
}
_RUNGS = {arm: place for place, arm in enumerate(ARMS)}


def by_ladder(things: Iterable[T], arm: Callable[[T], str]) -> list[T]:
    """Things by their arms; of arms that the ladder does not know, behind it, as they came."""
    return sorted(things, key=lambda one: _RUNGS.get(arm(one), len(ARMS)))


def in_order(arms: Iterable[str]) -> list[str]:
    """Names of arms by the ladder."""
    return by_ladder(arms, str)
