"""A clock that stands still while the arm is being measured."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Monotonic nanoseconds without the pauses; pauses may be nested."""

    def __init__(self) -> None:
        self._paused_ns = 0
        self._depth = 0
        self._stopped = 0

    def now(self) -> int:
        """Nanoseconds; inside a pause, those at its begin."""
        return self._stopped if self._depth else time.monotonic_ns() - self._paused_ns

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out the time of the block."""
        if not self._depth:
            self._stopped = self.now()
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                self._paused_ns = time.monotonic_ns() - self._stopped
