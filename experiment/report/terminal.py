"""The terminal that every console prints to."""

from __future__ import annotations

import sys
from typing import TextIO, cast

from rich.console import Console

from experiment.report.texts import AsciiFile

_WIDEST = 1000  # COLUMNS may be any number, and lines are filled up to it


def terminal(ascii_only: bool) -> Console:
    """Standard output: our texts are no markup; in ASCII alone where that is asked for."""
    stream = cast("TextIO", AsciiFile(sys.stdout)) if ascii_only else None
    console = Console(file=stream, highlight=False, safe_box=True, emoji=False, markup=False)
    if console.width > _WIDEST:
        console.width = _WIDEST
    return console
