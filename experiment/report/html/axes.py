"""Axes of charts: a grid with labels on the left, and ticks with labels below."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup

from experiment.report.facts.bilingual import Bilingual
from experiment.report.html.svg import Scale, decimal_ticks, line, text
from experiment.text.messages import Message


def grid(
    b: Bilingual, x: Scale, y: Scale, ticks: Iterable[tuple[float, str]], gap: int = 8
) -> list[Markup]:
    """A horizontal line for each tick, with its label ``gap`` pixels to the left."""
    parts: list[Markup] = []
    for tick, label in ticks:
        parts.append(line(x.start, y(tick), x.end, y(tick), class_="grid"))
        parts.append(text(b, x.start - gap, y(tick) + 4, label, class_="t small end num tick"))
    return parts


def x_axis(b: Bilingual, x: Scale, y: float, label: Message, most: int = 5) -> list[Markup]:
    """The axis at ``y`` with round numbers, at most about ``most``, and its label."""
    parts = [line(x.start, y, x.end, y, class_="axis")]
    for tick in decimal_ticks(x.top, most):
        parts.append(line(x(tick), y, x(tick), y + 4, class_="axis"))
        parts.append(text(b, x(tick), y + 17, f"{tick:,.10g}", class_="t small middle num tick"))
    middle = (x.start + x.end) / 2
    return [*parts, text(b, middle, y + 36, label, class_="t small soft middle")]
