"""Percentiles by the nearest-rank method, and the number of values that they need.

20 values, sorted    1 2 3 … 18 19 20       95th percentile: the 19th; one is larger
8 values, sorted     1 2 … 7 8              95th percentile: unknown, since it would be the maximum
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T", int, float)


def is_enough(count: int, percent: int) -> bool:
    """Whether ``count`` values have the percentile: at least one must be larger.

    The 90th needs 10 values, the 95th 20, the 99th 100. The 100th is the maximum of any number.
    """
    return count > 0 and (percent >= 100 or count * (100 - percent) >= 100)


def percentile(values: Sequence[T], percent: int) -> T | None:
    """Nearest-rank percentile; None if there are too few values."""
    if not is_enough(len(values), percent):
        return None
    return sorted(values)[max(0, -(-len(values) * percent // 100) - 1)]
