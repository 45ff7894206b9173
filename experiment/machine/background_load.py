"""Background CPU load of other programs.

Measured while no arm runs. During an arm, :mod:`experiment.memory.usage` subtracts our own load
from the system's.
"""

from __future__ import annotations

import math
import os
import time

import psutil

from experiment.machine.thread_record import usable_cores

# Above this, an arm with as many threads as cores shares one of them for much of the time.
BUSY_CORES = 0.25
BUSY_BEFORE = "note.busy_now"  # key of the message about background load before the run
_SAMPLE_S = 0.4
_SAMPLES = 3
# CPU times that count as idle, and those already included in another one (guests in user time).
_IDLE = ("idle", "iowait", "steal")
_TWICE = ("guest", "guest_nice")


def load_average() -> float | None:
    """Load average over one minute; None if the system has none."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None


def others_cores() -> float | None:
    """Busy cores among those that we may use, while this process waits; None if unknown."""
    before, began = system_seconds(), time.monotonic()
    time.sleep(_SAMPLE_S)
    after, waited = system_seconds(), time.monotonic() - began
    if before is None or after is None or after[1] <= before[1]:
        return None
    return max(0.0, after[0] - before[0]) / waited


def is_busy(cores: float | None) -> bool:
    """Whether this many busy cores disturb an arm; False if unknown."""
    return cores is not None and cores > BUSY_CORES


def wait_until_quiet() -> float | None:
    """Wait until several consecutive samples are quiet; return the last one."""
    quiet, cores = 0, None
    while quiet < _SAMPLES:
        cores = others_cores()
        quiet = 0 if is_busy(cores) else quiet + 1
    return cores


def min_background_load() -> float | None:
    """Lowest of several samples of :func:`others_cores`; None if unknown.

    The first quiet sample ends it: a short peak is not background load.
    """
    least = math.inf
    for _ in range(_SAMPLES):
        cores = others_cores()
        if cores is None or not is_busy(cores):
            return cores
        least = min(least, cores)
    return least


def system_seconds() -> tuple[float, float] | None:
    """Busy and total seconds since boot, of the cores that this process may use.

    None if unknown.
    """
    try:
        each = [times._asdict() for times in psutil.cpu_times(percpu=True)]
    except (OSError, RuntimeError):
        return None
    ours = [each[core] for core in usable_cores() or () if core < len(each)] or each
    had = sum(spent for times in ours for name, spent in times.items() if name not in _TWICE)
    return had - sum(times.get(name, 0.0) for times in ours for name in _IDLE), had
