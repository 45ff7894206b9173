"""A text with the path of its value in the JSON file beside the page: the page's ``data-key``.

results.arms[paged].peak.live    fields by name; in brackets the entry of a list by its arm,
                                 channel, claim, part, id or policy, or the key of a table
results.notes.0                  the entry of a list by its place, from 0
"""

from __future__ import annotations

from dataclasses import dataclass

from experiment.text.messages import Message


@dataclass(frozen=True, slots=True)
class Keyed:
    """A text, or a message in both languages, with its path."""

    text: str | Message
    key: str


def keyed(text: str | None, key: str) -> Keyed | None:
    """A written value with its path; None where it is unknown."""
    return None if text is None else Keyed(text, key)


class KeyedText(str):
    """A text in one language whose figure, its first line, lies at ``key``."""

    key: str

    def __new__(cls, text: str, key: str) -> KeyedText:
        """The text with its path."""
        made = super().__new__(cls, text)
        made.key = key
        return made
