"""What the measurements of decoding steps share: the setting and the clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

WARM_UP, STEPS = 3, 20


@dataclass(frozen=True, slots=True)
class Setting:
    """Requests that decode together, and tokens that each of them holds."""

    batch: int
    context: int

    @property
    def id(self) -> str:
        """Part of the names of its checks."""
        return f"batch{self.batch}.context{self.context}"


def timed(step: Callable[[], Any]) -> float:
    """Median seconds; a step ends when its tokens are on the host."""
    for _ in range(WARM_UP):
        step()
    times = []
    for _ in range(STEPS):
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    return median(times)
