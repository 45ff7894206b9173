"""Live displays: a progress bar, or a line that the next one replaces.

A display whose start was interrupted, by a signal or a closed terminal, cannot be stopped without
another error. So signals are delayed while a display starts, and only started displays are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from experiment.process.interrupts import shielded

# Advances a display by one part; a text, if any, names the next one.
Advance = Callable[..., None]


class Display(Protocol):
    """Interface of rich's live displays."""

    def start(self) -> None:
        """Start refreshing the display."""

    def stop(self) -> None:
        """Stop refreshing the display."""


D = TypeVar("D", bound=Display)


class ActiveDisplay(Generic[D]):
    """The current display of a console.

    Attributes:
        now: the started display; None if there is none.
    """

    def __init__(self) -> None:
        self.now: D | None = None

    def begin(self, display: D) -> None:
        """Start a display.

        Raises:
            OSError: the terminal was closed; no display is kept.
        """
        with shielded():
            display.start()
            self.now = display

    def end(self) -> None:
        """Stop the display, if any."""
        display, self.now = self.now, None
        if display is not None:
            with shielded():
                display.stop()


@contextmanager
def showing(display: Display) -> Iterator[None]:
    """Show a display within the block.

    Raises:
        OSError: the terminal was closed.
    """
    shown: ActiveDisplay[Display] = ActiveDisplay()
    try:
        shown.begin(display)
        yield
    finally:
        shown.end()
