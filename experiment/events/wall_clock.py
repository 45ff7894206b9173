"""Wall-clock time with its UTC offset."""

from __future__ import annotations

import time
from datetime import datetime
from typing import TypedDict


class WallClock(TypedDict):
    """Unix time in nanoseconds, and the local UTC offset in seconds."""

    wall_ns: int
    utc_offset_s: int


def wall_clock() -> WallClock:
    """Current time."""
    offset = datetime.now().astimezone().utcoffset()
    seconds = int(offset.total_seconds()) if offset else 0
    return {"wall_ns": time.time_ns(), "utc_offset_s": seconds}
