"""Whether readings of memory grow, told apart from their noise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def growth(values: Sequence[int]) -> tuple[float, float]:
    """What a straight line through ``values`` gains over them, and the noise around it."""
    steps = np.arange(len(values))
    slope, start = np.polyfit(steps, np.array(values, float), 1)
    noise = float(np.std(np.array(values) - (slope * steps + start)))
    return float(slope * len(values)), noise
