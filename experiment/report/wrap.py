"""Line breaks for text that mixes Chinese and words: rich breaks at spaces only."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

# No line begins with these: closing marks stay with what they close.
_CLOSING = "，。；：！？、）」』】》”’％%"
_OPENING = "（「『【《“‘"
_PIECES = re.compile(
    rf"[{_OPENING}]*(?:[\u2e80-\ufaff\uff00-\uffef]|[^\s\u2e80-\ufaff\uff00-\uffef]+)[{_CLOSING}]*|\s+"
)

# A number and its unit stay on one line.
_UNIT = re.compile(r"(?<=\d) (?=%|s\b|B\b|[KMG]iB\b)")
_GLUE = "\x01"


def wrap(text: str, width: int) -> str:
    """Break ``text`` into lines of at most ``width`` cells, between Chinese characters too."""
    lines: list[str] = []
    for paragraph in _UNIT.sub(_GLUE, text).split("\n"):
        line = ""
        for piece in _PIECES.findall(paragraph):
            if _cells(line) + _cells(piece.rstrip()) > width and line.strip():
                lines.append(line.rstrip())
                line = piece.lstrip()
            else:
                line += piece
        lines.append(line.rstrip())
    return "\n".join(lines).replace(_GLUE, " ")


@dataclass(frozen=True, slots=True)
class Words:
    """A cell of words in a table: broken like other texts, and never cut off.

    rich takes a Chinese sentence for one word, and ends a word that finds no room with dots.
    """

    text: str
    style: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(wrap(self.text, options.max_width), style=self.style, overflow="fold")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        lines = _UNIT.sub(_GLUE, self.text).split("\n")
        pieces = [piece.strip() for line in lines for piece in _PIECES.findall(line)]
        longest = max(map(_cells, lines), default=0)
        return Measurement(max(map(_cells, pieces), default=0), longest).with_maximum(
            options.max_width
        )


def _cells(text: str) -> int:
    return cell_len(text.replace(_GLUE, " "))
