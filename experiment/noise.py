"""Whether anybody else keeps the machine busy, asked while no arm of ours runs."""

from __future__ import annotations

import os

import psutil

# Above this, an arm with as many threads as cores shares one of them for much of the time.
BUSY_CORES = 0.25
_WATCHED_S = 0.4
_LOOKS = 3


def load_average() -> float | None:
    """Of a minute; None where the system keeps none."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None


def others_cores() -> float | None:
    """Cores that are busy now, while we wait; None where nobody knows."""
    try:
        share = psutil.cpu_percent(_WATCHED_S)
    except (OSError, RuntimeError):
        return None
    return share / 100 * (psutil.cpu_count() or 1)


def kept_busy() -> float | None:
    """Cores that other programs keep busy at every one of some looks, the least of them.

    None: there are none, or nobody knows. A busy moment is no busy machine.
    """
    least = None
    for _ in range(_LOOKS):
        cores = others_cores()
        if cores is None or cores <= BUSY_CORES:
            return None
        least = cores if least is None else min(least, cores)
    return least
