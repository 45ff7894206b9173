"""The terminal that every console prints to."""

from __future__ import annotations

import sys
from typing import TextIO, cast

from rich.console import Console

from experiment.report.texts import AsciiFile


def terminal(ascii_only: bool) -> Console:
    """Standard output: our texts are no markup; in ASCII alone where that is asked for."""
    stream = cast("TextIO", AsciiFile(sys.stdout)) if ascii_only else None
    return Console(file=stream, highlight=False, safe_box=True, emoji=False, markup=False)
