"""Percentiles, and of how many values they say anything: one rule for all that is printed.

values of 20, in order   1 2 3 … 18 19 20       95th percentile: the 19th; one lies above it
values of 8, in order    1 2 … 7 8              95th percentile: unknown, the 8th is the largest

Whoever prints one of fewer values would print the largest under another name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T", int, float)


def is_enough(count: int, percent: int) -> bool:
    """Whether so many values have that percentile: at least one of them must lie above it.

    The 90th takes 10, the 95th 20, the 99th 100. The 100th is the largest, of any number.
    """
    return count > 0 and (percent >= 100 or count * (100 - percent) >= 100)


def percentile(values: Sequence[T], percent: int) -> T | None:
    """The smallest value that so many of a hundred do not exceed; None where they are too few."""
    if not is_enough(len(values), percent):
        return None
    return sorted(values)[max(0, -(-len(values) * percent // 100) - 1)]
