"""Texts shared by several reporters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, TextIO

from experiment.events import RunStarted
from experiment.text import Translator, readable
from experiment.text.messages import Message, arm_message


@dataclass(frozen=True, slots=True)
class Cells:
    """A table.

    The last cell of a row shorter than the header spans the remaining columns; a row of one cell is
    a heading.

    Attributes:
        left: left-aligned columns.
        styles: of rows on a console.
        links: addresses of cells on a page, by text.
        name: of the chart above the table on a page.
    """

    title: str
    header: list[str]
    rows: list[list[str]]
    left: tuple[int, ...] = (0,)
    styles: Sequence[str] = ()
    notes: list[str] = field(default_factory=list)
    links: Mapping[str, str] = field(default_factory=dict)
    name: str = ""


@dataclass(frozen=True, slots=True)
class PageText:
    """A page: the answer and its first table are open, other tables and lists folded.

    Attributes:
        kicker: the question.
        headline: the answer.
        facts: conditions of the figures, a sentence each.
        tables: titles are the labels of the folds.
        lists: further sentences by heading.
        lines: more of the answer, a sentence each.
        alarms: what failed; ``notes``: what else to know before relying on the answer.
        command: for a shell.
        when: date and time.
    """

    kicker: str
    headline: str
    facts: Sequence[str]
    tables: Sequence[Cells]
    lists: Mapping[str, Sequence[str]] = field(default_factory=dict)
    lines: Sequence[str] = ()
    alarms: Sequence[str] = ()
    notes: Sequence[str] = ()
    command: str = ""
    when: str = ""


def keyed_notes(t: Translator, notes: Iterable[Message], path: str) -> list[str]:
    """Messages of a list, each with its place in the data."""
    return [KeyedText(t.message(each), f"{path}.{n}") for n, each in enumerate(notes)]


def capital(text: str) -> str:
    """A text that begins with a capital letter."""
    return text[:1].upper() + text[1:]


def said(t: Translator, words: Words) -> str:
    """A text, or a message in the language of ``t``."""
    return words if isinstance(words, str) else t.message(words)


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
