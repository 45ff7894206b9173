"""Displays that move: a bar, or a line that the next one replaces. Each begins and ends as a whole.

A display that broke off while it began, because a signal came or the terminal went, cannot be
stopped: that would be an error of its own, on top. So signals wait, and only what stands is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from experiment.process.interrupts import shielded

# Shows that one part more is done.
Advance = Callable[[], None]


class Display(Protocol):
    """What rich's live displays can do."""

    def start(self) -> None:
        """Draw it, again and again."""

    def stop(self) -> None:
        """Draw it no more."""


D = TypeVar("D", bound=Display)


class Shown(Generic[D]):
    """The display of a console, if there is one at the moment.

    Attributes:
        now: the display that stands; None where none does.
    """

    def __init__(self) -> None:
        self.now: D | None = None

    def begin(self, display: D) -> None:
        """Show a display from now on.

        Raises:
            OSError: its terminal is gone; then there is none.
        """
        with shielded():
            display.start()
            self.now = display

    def end(self) -> None:
        """Take away what is shown, if anything is."""
        display, self.now = self.now, None
        if display is not None:
            with shielded():
                display.stop()


@contextmanager
def showing(display: Display) -> Iterator[None]:
    """Show a display for as long as this lasts.

    Raises:
        OSError: its terminal is gone.
    """
    shown: Shown[Display] = Shown()
    try:
        shown.begin(display)
        yield
    finally:
        shown.end()
