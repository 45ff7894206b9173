"""Texts shared by several reporters."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any, TextIO

from experiment.events import RunStarted
from experiment.text import Translator, readable
from experiment.text.messages import Message, arm_message

# A text, or a message to be rendered.
Words = str | Message
ASCII = str.maketrans({"—": "-", "·": "-", "×": "x", "→": "->", "…": "...", "÷": "/", "≥": ">=",
                        "≤": "<=",
                        "−": "-", "“": '"', "”": '"', "µ": "u", "⁹": "^9"})  # fmt: skip


class AsciiTranslator(Translator):
    """Translator that replaces non-ASCII signs; letters of the language are kept."""

    def __call__(self, key: str, **params: object) -> str:
        """Render a text with ASCII signs."""
        return super().__call__(key, **params).translate(ASCII)


def translator(lang: str, ascii_only: bool) -> Translator:
    """Create a translator, with ASCII signs for ``--ascii``."""
    return AsciiTranslator(lang) if ascii_only else Translator(lang)


class AsciiFile:
    """Text stream that replaces the non-ASCII signs of our texts."""

    encoding = "ascii"  # makes rich draw ASCII lines

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write ``text`` with ASCII signs."""
        return self._stream.write(text.translate(ASCII))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def arm_name(t: Translator, arm: str) -> str:
    """Translated name of an arm; unknown arms keep their own."""
    named = arm_message(arm)
    return t.message(named) if t.has(named.key) else arm


def preview(text: str, limit: int) -> str:
    """Beginning of a text on one line, with escaped control characters."""
    line = " ".join(readable(text).split())
    return line if len(line) <= limit else line[: limit - 3] + "..."


def date_text(wall_ns: int, utc_offset_s: int) -> str:
    """Local date and time."""
    zone = timezone(timedelta(seconds=utc_offset_s))
    return f"{datetime.fromtimestamp(wall_ns / 1e9, UTC).astimezone(zone):%Y-%m-%d %H:%M}"


def clock(started: RunStarted, t_ns: int) -> str:
    """Local time of day at a monotonic time of the run, in ns."""
    wall_s = (started.wall_ns + t_ns - started.t_ns) / 1e9
    zone = timezone(timedelta(seconds=started.utc_offset_s))
    return datetime.fromtimestamp(wall_s, UTC).astimezone(zone).strftime("%H:%M:%S")
