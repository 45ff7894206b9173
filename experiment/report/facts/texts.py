"""Small pieces of text that several reporters share."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any, TextIO

from experiment.events import RunStarted
from experiment.text import Translator, readable
from experiment.text.messages import Message, arm_message

# A text, or a message that a reporter renders.
Words = str | Message
ASCII = str.maketrans({"—": "-", "·": "-", "×": "x", "→": "->", "…": "...", "÷": "/", "≥": ">=",
                        "≤": "<=",
                        "−": "-", "“": '"', "”": '"', "µ": "u", "⁹": "^9"})  # fmt: skip


class AsciiTranslator(Translator):
    """Renders signs outside ASCII by plain ones; letters of the language stay."""

    def __call__(self, key: str, **params: object) -> str:
        """Render a text, signs made plain."""
        return super().__call__(key, **params).translate(ASCII)


def translator(lang: str, ascii_only: bool) -> Translator:
    """A translator that heeds ``--ascii``."""
    return AsciiTranslator(lang) if ascii_only else Translator(lang)


class AsciiFile:
    """A text stream that writes the signs of our own texts as plain ones."""

    encoding = "ascii"  # rich draws lines of plain signs, too

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write ``text``, signs made plain."""
        return self._stream.write(text.translate(ASCII))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def arm_name(t: Translator, arm: str) -> str:
    """Name of an arm in the translator's language; an unknown arm under its own name."""
    named = arm_message(arm)
    return t.message(named) if t.has(named.key) else arm


def preview(text: str, limit: int) -> str:
    """Beginning of a text on one line, control characters escaped."""
    line = " ".join(readable(text).split())
    return line if len(line) <= limit else line[: limit - 3] + "..."


def date_text(wall_ns: int, utc_offset_s: int) -> str:
    """Date and time where something was made."""
    zone = timezone(timedelta(seconds=utc_offset_s))
    return f"{datetime.fromtimestamp(wall_ns / 1e9, UTC).astimezone(zone):%Y-%m-%d %H:%M}"


def clock(started: RunStarted, t_ns: int) -> str:
    """Wall-clock time of day of a monotonic moment of the run."""
    wall_s = (started.wall_ns + t_ns - started.t_ns) / 1e9
    zone = timezone(timedelta(seconds=started.utc_offset_s))
    return datetime.fromtimestamp(wall_s, UTC).astimezone(zone).strftime("%H:%M:%S")
