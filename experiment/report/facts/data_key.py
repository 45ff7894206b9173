"""Texts with the path of their value in the JSON file of the page: its ``data-key``.

results.arms[paged].peak.live    fields by name; in brackets the entry of a list by its arm,
                                 channel, claim, part, id or policy, or the key of a table
results.notes.0                  the entry of a list by its index
"""

from __future__ import annotations

from dataclasses import dataclass

from experiment.text.messages import Message


@dataclass(frozen=True, slots=True)
class Keyed:
    """A text or message with its path."""

    text: str | Message
    key: str


def keyed(text: str | None, key: str) -> Keyed | None:
    """A formatted value with its path; None if unknown."""
    return None if text is None else Keyed(text, key)


class KeyedText(str):
    """A text in one language; ``key`` is the path of the figure in its first line."""

    key: str

    def __new__(cls, text: str, key: str) -> KeyedText:
        """Create a text with its path."""
        made = super().__new__(cls, text)
        made.key = key
        return made
