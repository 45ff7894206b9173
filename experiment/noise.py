"""Whether anybody else keeps the machine busy, asked while no arm of ours runs."""

from __future__ import annotations

import os

import psutil

# Above this, an arm with as many threads as cores shares one of them for much of the time.
BUSY_CORES = 0.25
_WATCHED_S = 0.4


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
