"""Whether anybody else keeps the machine busy.

Asked while no arm of ours runs; while one does, :mod:`experiment.memory.usage` takes what is ours
off what the whole system did.
"""

from __future__ import annotations

import os

import psutil

# Above this, an arm with as many threads as cores shares one of them for much of the time.
BUSY_CORES = 0.25
_WATCHED_S = 0.4
_LOOKS = 3
# Of the times that the system keeps: in these it does nothing, or another system has the core, or
# they are counted in another one already (those of guests in what users take).
_IDLE = ("idle", "iowait", "steal")
_TWICE = ("guest", "guest_nice")


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


def system_seconds() -> tuple[float, float] | None:
    """Seconds that all cores together were busy since the machine began, and all that they had.

    None where the system does not say.
    """
    try:
        times = psutil.cpu_times()._asdict()
    except (OSError, RuntimeError):
        return None
    had = sum(spent for name, spent in times.items() if name not in _TWICE)
    return had - sum(times.get(name, 0.0) for name in _IDLE), had
