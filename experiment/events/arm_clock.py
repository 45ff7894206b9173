"""A monotonic clock that can be paused during measurements."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Monotonic nanoseconds without the pauses; pauses may nest."""

    def __init__(self) -> None:
        self._paused_ns = 0
        self._depth = 0
        self._stopped = 0

    def now(self) -> int:
        """Nanoseconds; inside a pause, the time when it began."""
        return self._stopped if self._depth else time.monotonic_ns() - self._paused_ns

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the clock in the block."""
        if not self._depth:
            self._stopped = self.now()
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                self._paused_ns = time.monotonic_ns() - self._stopped
