"""Line breaks for mixed Chinese and Latin text; rich breaks at spaces only."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.cells import cell_len

if TYPE_CHECKING:
    from rich.text import Text

# No break before a closing mark, ASCII marks after a Chinese character included.
_CLOSING = frozenset("，。；：！？、）」』】》〉”’％…)]%")
_MARKS = rf"(?:[{re.escape(''.join(sorted(_CLOSING)))}]|[.,:;!?](?!\w))*"
_CHINESE = "\u2e80-\ufaff\uff00-\uffef"
_PIECE = re.compile(rf"[（「『【《〈“‘]*(?:[{_CHINESE}]|[^\s{_CHINESE}]+){_MARKS}")

# No break between number and unit, or within a range.
_UNIT = r"(?:[%×]|(?:[KMGT]i?B|B|[mµun]?s|\w+/s)\b)"
_GLUED = re.compile(
    rf"(?<=\d) (?={_UNIT})|(?<=[\w%]) (?=(?:…|\.\.\.) [-\d])|(?<=[\w%] …) (?=[-\d])"
    r"|(?<=[\w%] \.\.\.) (?=[-\d])|(?<=±) (?=\d)|(?<=[\d%]) (?=± )"
)


def wrap(text: str, width: int) -> str:
    """Break ``text`` into lines of at most ``width`` cells, also between Chinese characters.

    Only words wider than a line are broken.
    """
    return "\n".join(text[begin:end] for begin, end in _lines(text, width))


def fold(text: Text, width: int) -> list[Text]:
    """Break styled text in the same places."""
    return [text[begin:end] for begin, end in _lines(text.plain, width)]


def longest_word(text: str, width: int) -> int:
    """Cells of the longest unbroken part of ``text`` in lines of ``width`` cells."""
    words = map(cell_len, _PIECE.findall(_GLUED.sub("_", text)))
    return max((cells for cells in words if cells <= width), default=0)


def _lines(text: str, width: int) -> Iterator[tuple[int, int]]:
    """Begin and end of each line, without spaces between lines."""
    at = 0
    for part in _GLUED.sub("_", text).split("\n"):
        begin = end = 0
        for piece in _PIECE.finditer(part):
            if cell_len(part[begin : piece.end()]) > width:
                if end > begin:
                    yield at + begin, at + end
                begin = piece.start()
            while cell_len(part[begin : piece.end()]) > width:
                end = _cut(part, begin, width)
                yield at + begin, at + end
                begin = end
            end = piece.end()
        yield at + begin, at + end
        at += len(part) + 1


def _cut(text: str, begin: int, width: int) -> int:
    """End of a line within a word that is too long; not after a hyphen."""
    end = begin + 1
    while end < len(text) and cell_len(text[begin : end + 1]) <= width:
        end += 1
    while end > begin + 1 and (text[end : end + 1] in _CLOSING or text[end - 1] == "-"):
        end -= 1
    return end
