"""The terminal that every console prints to."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TextIO, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from experiment.report.facts.texts import AsciiFile
from experiment.text import readable

_WIDEST = 1000  # COLUMNS may be any number, and lines are filled up to it


class Terminal(Console):
    """A console on which control characters of any text are escaped; its own stay."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Render as rich does."""
        for part in super().render(renderable, options):
            yield part if part.control else Segment(readable(part.text), part.style)


def terminal(ascii_only: bool) -> Console:
    """Standard output: our texts are no markup; in ASCII alone where that is asked for."""
    stream = cast("TextIO", AsciiFile(sys.stdout)) if ascii_only else None
    console = Terminal(file=stream, highlight=False, safe_box=True, emoji=False, markup=False)
    if console.width > _WIDEST:
        console.width = _WIDEST
    return console
