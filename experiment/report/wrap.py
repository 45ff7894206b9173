"""Line breaks for text that mixes Chinese and words: rich breaks at spaces only."""

from __future__ import annotations

import re

from rich.cells import cell_len

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


def _cells(text: str) -> int:
    return cell_len(text.replace(_GLUE, " "))
