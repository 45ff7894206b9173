"""Texts of a page in one language: the answer, tables and lists; also for the console."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from experiment.report.facts.data_key import KeyedText
from experiment.report.facts.texts import Words
from experiment.text import Translator
from experiment.text.messages import Message


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
