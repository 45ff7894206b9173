"""Suggestions for misspelled names."""

from __future__ import annotations

import re
from collections.abc import Iterable

_LONGEST = 60


def nearest(word: str, known: Iterable[str], most: int = 1) -> tuple[str, ...]:
    """Return the nearest names in ``known``, at most ``most``; none if all are too different.

    A near name differs in case and punctuation only, or contains the word at an end, or the
    reverse. Or it is one edit away, two for words of eight letters and more.
    """
    wanted = _plain(word)
    if not 1 < len(wanted) <= _LONGEST:
        return ()
    allowed = (len(wanted) > 2) + (len(wanted) > 7)
    far: dict[str, int] = {}
    for name in known:
        plain = _plain(name)
        part = plain.startswith(wanted) or f"-{plain}".endswith(f"-{wanted}")
        if plain == wanted:
            far[name] = 0
        elif part or wanted.startswith(f"{plain}-"):
            far[name] = 1
        elif len(plain) <= _LONGEST and (edits := _edits(wanted, plain)) <= allowed:
            far[name] = 1 + edits
    return tuple([name for name in far if far[name] == min(far.values())][:most])


def _plain(name: str) -> str:
    return re.sub(r"[\s_./-]+", "-", name.lower()).strip("-")


def _edits(one: str, other: str) -> int:
    """Return the edit distance with insertion, deletion, replacement and transposition."""
    older: list[int] = []
    above = list(range(len(other) + 1))
    for i, a in enumerate(one):
        row = [i + 1]
        for j, b in enumerate(other):
            row.append(min(above[j + 1] + 1, row[j] + 1, above[j] + (a != b)))
            if i and j and (a, b) == (other[j - 1], one[i - 1]):
                row[-1] = min(row[-1], older[j - 1] + 1)
        older, above = above, row
    return above[-1]
