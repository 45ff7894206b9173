"""What happens to a request's blocks, as tables show it: of an arm without blocks a dash and why.

    contiguous.*    who is admitted has all its memory: nothing to preempt, swap or copy    —
    every other     counted from its plans, 0 where it did not happen                       0, 1, …

The record has 0 for all of them: it counts, and a gate can hold by it.
"""

from __future__ import annotations

from experiment.analysis.results import ArmResult, Results
from experiment.text.messages import Message, message

NO_BLOCKS: Message = message("report.unknown.no_blocks")
_NAMES = ("preemptions", "swapped_blocks", "copied_blocks")


def has_blocks(arm: str) -> bool:
    """Whether requests of an arm have blocks that they can lose."""
    return not arm.startswith("contiguous.")


def happened(results: Results) -> list[str]:
    """Counts of which any arm has some: rows of what never happened would only be long."""
    return [name for name in _NAMES if any(getattr(arm, name) for arm in results.arms)]


def counted(arm: ArmResult, name: str) -> int | None:
    """One of the counts; None where it is unknown, and where there is nothing to count."""
    found: int | None = getattr(arm, name)
    return found if has_blocks(arm.arm) else None
