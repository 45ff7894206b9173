"""Whether anybody else keeps the machine busy.

Asked while no arm of ours runs; while one does, :mod:`experiment.memory.usage` takes what is ours
off what the whole system did.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection

import psutil

# Above this, an arm with as many threads as cores shares one of them for much of the time.
BUSY_CORES = 0.25
BUSY_BEFORE = "note.busy_now"  # the message that others were busy before the run
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
    """Cores that are busy now, of those that we may use, while we wait; None: nobody knows."""
    before, began = system_seconds(), time.monotonic()
    time.sleep(_WATCHED_S)
    after, waited = system_seconds(), time.monotonic() - began
    if before is None or after is None or after[1] <= before[1]:
        return None
    return max(0.0, after[0] - before[0]) / waited


def kept_busy() -> float | None:
    """Cores that other programs keep busy at every one of some looks, the least of them.

    None: there are none, or nobody knows.
    """
    least = least_busy()
    return least if is_busy(least) else None


def is_busy(cores: float | None) -> bool:
    """Whether so many cores, kept busy by other programs, disturb an arm; not where unknown."""
    return cores is not None and cores > BUSY_CORES


def wait_until_quiet() -> float | None:
    """Look until a row of looks finds nobody busy; returns what the last one saw."""
    quiet, cores = 0, None
    while quiet < _LOOKS:
        cores = others_cores()
        quiet = 0 if is_busy(cores) else quiet + 1
    return cores


def least_busy() -> float | None:
    """The least of some looks at :func:`others_cores`; None where nobody knows.

    A busy moment is no busy machine, so the first quiet look is the last one.
    """
    least = None
    for _ in range(_LOOKS):
        cores = others_cores()
        if not is_busy(cores):
            return cores
        assert cores is not None
        least = cores if least is None else min(least, cores)
    return least


def system_seconds() -> tuple[float, float] | None:
    """Seconds that the cores we may use were busy since the machine began, and all they had.

    Who works on other cores of a large machine takes none of ours. None where the system does not
    say.
    """
    try:
        each = [times._asdict() for times in psutil.cpu_times(percpu=True)]
    except (OSError, RuntimeError):
        return None
    ours = [each[core] for core in _usable() if core < len(each)] or each
    had = sum(spent for times in ours for name, spent in times.items() if name not in _TWICE)
    return had - sum(times.get(name, 0.0) for times in ours for name in _IDLE), had


def _usable() -> Collection[int]:
    """Cores that this process may run on; none where the system does not tell."""
    try:
        return os.sched_getaffinity(0)
    except (AttributeError, OSError):
        return ()
