"""The wall clock, as every record holds it: when something began, and in which offset of time."""

from __future__ import annotations

import time
from datetime import datetime
from typing import TypedDict


class WallClock(TypedDict):
    """Unix time in nanoseconds, and how far the clock on the wall was ahead of it, in seconds."""

    wall_ns: int
    utc_offset_s: int


def wall_clock() -> WallClock:
    """What it shows now."""
    offset = datetime.now().astimezone().utcoffset()
    seconds = int(offset.total_seconds()) if offset else 0
    return {"wall_ns": time.time_ns(), "utc_offset_s": seconds}
