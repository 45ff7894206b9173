"""What is the same in every rendering of a text of the English catalogue."""

from __future__ import annotations

import string

from experiment.text import catalogue


def fixed(key: str) -> str:
    """The longest part of a text that holds no placeholder."""
    parts = (literal for literal, *_ in string.Formatter().parse(catalogue("en")[key]))
    return max(parts, key=len).strip()
