"""Colour, mark and dashes of each arm, the same in all charts of all reports.

an arm of the ladder   a fixed number
a custom arm           the next number that no arm of the ladder has; when these are used up, one
                       whose arm is not in this report
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import cycle, islice

from experiment.config.arms import ARMS

# Number of classes ``s0``, ``s1``, … in the style sheet, and of marks and dashes.
SERIES = 10
_NUMBERS = {name: arm.series for name, arm in ARMS.items() if arm.series is not None}


def arm_series(names: Iterable[str]) -> Mapping[str, int]:
    """Series number of each arm of a report, and of other lines drawn like arms.

    Args:
        names: all names of the report in order, which determine the numbers of custom arms.
    """
    several = list(dict.fromkeys(names))
    fixed = {name: _NUMBERS[name] for name in several if name in _NUMBERS}
    others = [name for name in several if name not in fixed]
    spare = [number for number in range(SERIES) if number not in _NUMBERS.values()]
    spare += [number for number in _NUMBERS.values() if number not in fixed.values()]
    left = cycle(spare)
    return fixed | dict(zip(others, islice(left, len(others)), strict=True))
