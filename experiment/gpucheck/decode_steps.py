"""Settings and timing of decode steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

WARM_UP, STEPS = 3, 20


@dataclass(frozen=True, slots=True)
class Setting:
    """Batch size, and context of each request in tokens."""

    batch: int
    context: int

    @property
    def id(self) -> str:
        """Part of the check ids."""
        return f"batch{self.batch}.context{self.context}"


def timed(step: Callable[[], Any]) -> float:
    """Median seconds of a step, until its tokens are on the host."""
    for _ in range(WARM_UP):
        step()
    times = []
    for _ in range(STEPS):
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    return median(times)
