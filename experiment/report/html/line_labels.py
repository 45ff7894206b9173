"""Place the labels of points below a line chart without overlaps or cuts.

numbers   1   2   4         as many as fit
words     a   b   c         all: in one row, in two, or vertical
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from markupsafe import Markup

from experiment.report.facts.bilingual import Bilingual
from experiment.report.facts.data_key import Keyed
from experiment.report.html.svg import Label, text
from experiment.text.messages import Message

HEIGHT = 230  # of the drawing above its labels
_SIGN, _WIDE_SIGN = 7, 12.5  # pixels of a small letter, and of a Chinese one
_BETWEEN = 10  # pixels between two labels
_ROW = 17


def text_pixels(text: str) -> float:
    """Maximum width of a small text, in pixels."""
    wide = sum(unicodedata.east_asian_width(sign) in "WF" for sign in text)
    return (len(text) - wide) * _SIGN + wide * _WIDE_SIGN


def point_labels(
    b: Bilingual,
    points: Sequence[Label],
    places: Sequence[float],
    pixels: float,
    joined: bool,
    mark: int | None,
) -> tuple[list[Markup], float]:
    """Labels of the points at ``places``, and the y coordinate below them.

    Args:
        pixels: width of the drawing.
        joined: whether points are numbers, with values between neighbours.
        mark: index of the highlighted point.
    """
    widths = [_pixels(b, point) for point in points]
    step = places[1] - places[0] if len(places) > 1 else pixels
    columns = -(-(max(widths) + _BETWEEN) // step)  # of the widest label
    own = list(zip(points, places, widths, strict=True))
    if joined:
        return _thinned(b, own, pixels, int(columns), mark), HEIGHT + 35
    if columns <= 2:
        rows = int(columns)
        parts = [
            _level(b, point, _within(x, size, pixels), index % rows, False)
            for index, (point, x, size) in enumerate(own)
        ]
        return parts, HEIGHT + 18 + rows * _ROW
    parts = [_upright(b, *pair) for pair in zip(points, places, strict=True)]
    return parts, HEIGHT + 26 + max(widths)


def _pixels(b: Bilingual, point: Label) -> float:
    """Width of a label in its widest language."""
    words = point.text if isinstance(point, Keyed) else point
    if not isinstance(words, Message):
        return text_pixels(words)
    return max(text_pixels(b.plain(lang, words)) for lang in b.order)


def _thinned(
    b: Bilingual,
    own: Sequence[tuple[Label, float, float]],
    pixels: float,
    every: int,
    mark: int | None,
) -> list[Markup]:
    """Every ``every``-th label, and the marked one without labels that overlap it."""
    parts = []
    for index, (point, x, size) in enumerate(own):
        near = mark is not None and abs(index - mark) < every
        if index == mark or (index % every == 0 and not near):
            parts.append(_level(b, point, _within(x, size, pixels), 0, index == mark))
    return parts


def _within(x: float, size: float, pixels: float) -> float:
    """Centre of a label near ``x`` that stays inside the drawing."""
    return max(size / 2, min(x, pixels - size / 2))


def _level(b: Bilingual, point: Label, x: float, row: int, strong: bool) -> Markup:
    style = "t small middle num" + (" strong" if strong else "")
    return text(b, x, HEIGHT + 18 + row * _ROW, point, class_=style)


def _upright(b: Bilingual, point: Label, x: float) -> Markup:
    """A vertical label below its tick."""
    turned = f"rotate(-90 {x + 4:.1f} {HEIGHT + 10})"
    return text(b, x + 4, HEIGHT + 10, point, class_="t small end num", transform=turned)
