"""Which colour, mark and dashes an arm has: the same ones in every chart of every report.

an arm of the ladder      its own number, always
an arm of somebody's own  the next number that no arm of the ladder has; when these are used up,
                          one of those whose arms this report has not
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import cycle, islice

from experiment.config.arms import ARMS

# Classes ``s0``, ``s1``, … of the style sheet, which have as many marks and dashes.
SERIES = 10
_NUMBERS = {name: arm.series for name, arm in ARMS.items() if arm.series is not None}


def arm_series(names: Iterable[str]) -> Mapping[str, int]:
    """The number of each arm of a report, and of what else its charts draw like arms.

    Args:
        names: all of the report's, in its order: what one has that is not known hangs on them.
    """
    several = list(dict.fromkeys(names))
    found = {name: _NUMBERS[name] for name in several if name in _NUMBERS}
    others = [name for name in several if name not in found]
    spare = [number for number in range(SERIES) if number not in _NUMBERS.values()]
    spare += [number for number in _NUMBERS.values() if number not in found.values()]
    left = cycle(spare)
    return found | dict(zip(others, islice(left, len(others)), strict=True))
