"""Where the names of points stand below a chart of lines, so that none is cut off or written over.

numbers   1   2   4         those for which there is room; what lies between can be guessed
words     a   b   c         all of them: in one row, in two, or upright
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Protocol

from markupsafe import Markup

from experiment.report.facts.bilingual import Bilingual
from experiment.report.facts.data_key import Keyed
from experiment.report.html.svg import Label, text
from experiment.text.messages import Message

HEIGHT = 230  # of the drawing above its labels
_SIGN, _WIDE_SIGN = 7, 12.5  # pixels of a letter of the small size, and of a Chinese one
_BETWEEN = 10  # pixels between two labels
_ROW = 17


class Labelled(Protocol):
    """What of a chart decides where its labels stand; see :class:`experiment.report.html.lines`."""

    @property
    def points(self) -> Sequence[Label]:
        """Names of the settings on the axis."""

    @property
    def mark(self) -> int | None:
        """Place of the one to be set apart."""

    @property
    def joined(self) -> bool:
        """Whether there is something between neighbours: whether they are numbers."""


def text_pixels(said: str) -> float:
    """How wide a text of the small size is at the most."""
    wide = sum(unicodedata.east_asian_width(sign) in "WF" for sign in said)
    return (len(said) - wide) * _SIGN + wide * _WIDE_SIGN


def point_labels(
    b: Bilingual, chart: Labelled, places: Sequence[float], pixels: float
) -> tuple[list[Markup], float]:
    """The labels of the points at ``places``, and the height at which what is below them begins.

    ``pixels``: width of the whole drawing.
    """
    widths = [_pixels(b, point) for point in chart.points]
    step = places[1] - places[0] if len(places) > 1 else pixels
    columns = -(-(max(widths) + _BETWEEN) // step)  # that the widest label takes
    if chart.joined:
        return _thinned(b, chart, (places, widths, pixels), int(columns)), HEIGHT + 35
    if columns <= 2:
        rows = int(columns)
        own = zip(chart.points, places, widths, strict=True)
        parts = [
            _level(b, point, _within(x, size, pixels), index % rows, False)
            for index, (point, x, size) in enumerate(own)
        ]
        return parts, HEIGHT + 18 + rows * _ROW
    parts = [_upright(b, *pair) for pair in zip(chart.points, places, strict=True)]
    return parts, HEIGHT + 26 + max(widths)


def _pixels(b: Bilingual, point: Label) -> float:
    """In the language in which it is widest."""
    words = point.text if isinstance(point, Keyed) else point
    if not isinstance(words, Message):
        return text_pixels(words)
    return max(text_pixels(b.plain(lang, words)) for lang in b.order)


def _thinned(
    b: Bilingual,
    chart: Labelled,
    room: tuple[Sequence[float], Sequence[float], float],
    every: int,
) -> list[Markup]:
    """Every so many of the labels; the marked one stays, and what would lie on it goes."""
    places, widths, pixels = room
    parts = []
    for index, (point, x, size) in enumerate(zip(chart.points, places, widths, strict=True)):
        own = index == chart.mark
        near = chart.mark is not None and abs(index - chart.mark) < every
        if own or (index % every == 0 and not near):
            parts.append(_level(b, point, _within(x, size, pixels), 0, own))
    return parts


def _within(x: float, size: float, pixels: float) -> float:
    """The middle of a label near ``x`` that neither edge of the drawing cuts off."""
    return max(size / 2, min(x, pixels - size / 2))


def _level(b: Bilingual, point: Label, x: float, row: int, strong: bool) -> Markup:
    style = "t small middle num" + (" strong" if strong else "")
    return text(b, x, HEIGHT + 18 + row * _ROW, point, class_=style)


def _upright(b: Bilingual, point: Label, x: float) -> Markup:
    """Written from below to its tick."""
    turned = f"rotate(-90 {x + 4:.1f} {HEIGHT + 10})"
    return text(b, x + 4, HEIGHT + 10, point, class_="t small end num", transform=turned)
