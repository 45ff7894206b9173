"""Table of all arms: implementation, command-line group, chart style and simulation.

plain Transformers ─► slabs ─► paged ─► external engines ─► user-defined arms

Reports show arms in this order.
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
        run: module and function in ``experiment.arms``; None: it runs in a separate interpreter.
        group: its name in ``--arms`` and in gates; empty: its own name.
        alone: it runs only if named itself, not with its group.
        series: its colour, mark and dashes in charts; None: the next unused ones.
        simulated: policy by which kvsim simulates it; None: not simulated.
        refuses: returns why it cannot run a workload, or None.
    """

    run: str | None
    group: str = ""
    alone: bool = False
    series: int | None = None
    simulated: Simulated | None = None
    refuses: Callable[[WorkloadReady], Message | None] = lambda _: None


def ends_by_length(workload: WorkloadReady) -> bool:
    """Whether requests end only at the given length or the end-of-text token."""
    return not workload.sampling.stop_token_ids and not workload.sampling.min_new_tokens


def _stops(workload: WorkloadReady) -> Message | None:
    return None if ends_by_length(workload) else message("skip.no_stops")


# The most frequent pair of arms in charts has the most distinct colours.
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
    """Sort things by their arm's order; unknown arms come last, in their given order."""
    return sorted(things, key=lambda one: _RUNGS.get(arm(one), len(ARMS)))


def in_order(arms: Iterable[str]) -> list[str]:
    """Sort names of arms."""
    return by_ladder(arms, str)
