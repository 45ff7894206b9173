"""Texts of tables that know where their numbers came from.

    Sourced("102.3 (98.1 … 105.0)")        a text like any other: for a console, for Markdown
      └─ pieces: text, key, kind           and for a page, which says it in data-key and data-as

Keys and kinds are those of ``facts.keyed``. A line behind the first of a cell, and
what stands in brackets behind a figure, is shown small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from experiment.report.facts.bilingual import UNIT, unbroken
from experiment.report.facts.keyed import Paths, Said
from experiment.text import DASH, Translator

_BEHIND = " ("


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a text; words alone have no key. ``href``: what they lead to, on a page."""

    text: str
    key: str = ""
    kind: str = ""
    href: str = ""


class Sourced(str):
    """A text made of pieces."""

    pieces: tuple[Piece, ...]

    def __new__(cls, *pieces: Piece) -> Sourced:
        """The text that the pieces come to."""
        made = super().__new__(cls, "".join(piece.text for piece in pieces))
        made.pieces = pieces
        return made


def joined(*texts: str) -> str:
    """One text of several, each number with its key."""
    return Sourced(*[piece for text in texts for piece in pieces_of(text)])


def in_lines(*texts: str) -> str:
    """Lines of a cell."""
    return joined(*[part for text in texts for part in ("\n", text)][1:])


def pieces_of(text: str) -> tuple[Piece, ...]:
    """Its pieces; a plain text is one of words."""
    return text.pieces if isinstance(text, Sourced) else (Piece(text),)


def told(t: Translator, said: Said) -> str:
    """A number or sentence in one language."""
    text = said.text if isinstance(said.text, str) else t.message(said.text)
    return Sourced(Piece(text, said.key, said.kind))


class Teller:
    """Texts in one language, with numbers that are looked up in a document."""

    def __init__(self, t: Translator, document: Mapping[str, Any]) -> None:
        self.t = t
        self._paths = Paths(document)

    def said(self, key: str, /, **expressions: str) -> str:
        """A sentence whose numbers are looked up."""
        return told(self.t, self._paths.said(key, **expressions))

    def stored(self, path: str) -> str:
        """A message that the document holds."""
        found = self._paths.stored(path)
        return DASH if found is None else told(self.t, found)

    def number(self, path: str, kind: str) -> str:
        """A value, written; a dash where it is unknown."""
        found = self._paths.number(path, kind)
        return DASH if found is None else told(self.t, found)

    def value(self, path: str) -> Any:
        """What lies there."""
        return self._paths.value(path)

    def arm(self, arm: str) -> str:
        """How a sentence names an arm: an expression for :meth:`said`."""
        key = f"arm_name.{arm.replace('.', '_')}"
        return f"@{key}" if self.t.has(key) else f"'{arm}"


def shown(text: str) -> Markup:
    """A text as markup, its numbers with their keys."""
    return _inline(pieces_of(text))


def cell_markup(text: str) -> Markup:
    """A cell: what stands in brackets behind its figure is small, and so are further lines."""
    bracketed = text.endswith(")") and text.count("(") == 1 and "\n" not in text
    at = text.find(_BEHIND)
    return _with_brackets(pieces_of(text), at) if bracketed and at > 0 else lines_markup(text)


def lines_markup(text: str) -> Markup:
    """Words: the first line, and the others in small letters."""
    first, *others = (_inline(line) for line in _lines(pieces_of(text)))
    return Markup("").join([first, *map(_small, others)])


def _with_brackets(pieces: Sequence[Piece], at: int) -> Markup:
    """The brackets begin at sign ``at``, within a piece or with one."""
    before: list[Piece] = []
    for place, piece in enumerate(pieces):
        if at < len(piece.text):
            head, tail = piece.text[:at], piece.text[at + 1 :]
            behind = _small(_inline([replace(piece, text=tail, key=""), *pieces[place + 1 :]]))
            inside = Markup("{} {}").format(_in_one(head), behind)
            return _inline(before) + _keyed(piece, inside)
        at -= len(piece.text)
        before.append(piece)
    raise AssertionError


def _lines(pieces: Sequence[Piece]) -> list[list[Piece]]:
    lines: list[list[Piece]] = [[]]
    for piece in pieces:
        first, *others = piece.text.split("\n")
        lines[-1].append(replace(piece, text=first))
        lines += [[replace(piece, text=line)] for line in others]
    return lines


def _inline(pieces: Sequence[Piece]) -> Markup:
    """One element where a number stands among others: a cell may be a grid."""
    inside = _side_by_side(pieces)
    several = sum(bool(piece.text) for piece in pieces) > 1
    return Markup("<span>{}</span>").format(inside) if several else inside


def _side_by_side(pieces: Sequence[Piece]) -> Markup:
    return Markup("").join(_keyed(piece, _in_one(piece.text)) for piece in pieces)


def _in_one(text: str) -> Markup:
    """Numbers stay with their units."""
    return unbroken(UNIT.sub("\u00a0", text))


def _keyed(piece: Piece, inside: Markup) -> Markup:
    if piece.href:
        return Markup('<a href="{}">{}</a>').format(piece.href, inside)
    if not piece.key:
        return inside
    return Markup('<span data-key="{}" data-as="{}">{}</span>').format(
        piece.key, piece.kind, inside
    )


def _small(text: Markup) -> Markup:
    return Markup("<small>{}</small>").format(text)
