"""Inline SVG: elements, text in both languages, scales, and patterns."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from markupsafe import Markup, escape

from experiment.report.facts.bilingual import Bilingual
from experiment.report.facts.texts import Keyed, Words
from experiment.text.messages import Message
from kvsim.accounting.ledger import SlotState

# A text without translation, a message, or a number with its data key.
Label = Words | Keyed


def tag(name: str, *children: object, **attributes: object) -> Markup:
    """One element. ``class_`` is class, other underscores are hyphens, None omits an attribute."""
    parts = [Markup("<{}").format(name)]
    for key, value in attributes.items():
        if value is None:
            continue
        shown = f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else value
        parts.append(Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), shown))
    inner = Markup("").join(escape(child) for child in children)
    return Markup("").join(parts) + Markup(">{}</{}>").format(inner, name)


def text(b: Bilingual, x: float, y: float, label: Label, **attributes: object) -> Markup:
    """A text; a message becomes one element per language."""
    if isinstance(label, Keyed):
        return text(b, x, y, label.text, data_key=label.key, **attributes)
    if isinstance(label, str):
        return tag("text", label, x=float(x), y=float(y), **attributes)
    return Markup("").join(
        tag("text", b.plain(lang, label), lang=lang, x=float(x), y=float(y), **attributes)
        for lang in b.order
    )


def rect(x: float, y: float, width: float, height: float, **attributes: object) -> Markup:
    """A rectangle with a width of at least 0."""
    return tag(
        "rect", x=float(x), y=float(y), width=max(float(width), 0.0), height=float(height),
        **attributes,
    )  # fmt: skip


def line(x1: float, y1: float, x2: float, y2: float, **attributes: object) -> Markup:
    """A straight line."""
    return tag("line", x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2), **attributes)


def path(
    points: Iterable[tuple[float, float]], closed: bool = False, **attributes: object
) -> Markup:
    """A polyline through ``points``, in relative steps of tenths of a pixel."""
    steps: list[str] = []
    last: tuple[int, int] | None = None
    for point in points:
        x, y = round(point[0] * 10), round(point[1] * 10)
        if last is None:
            steps.append(f"M{_tenths(x)} {_tenths(y)}")
        elif (x, y) != last:
            steps.append(_way(x - last[0], y - last[1]))
        last = (x, y)
    return tag("path", d="".join(steps) + ("Z" if closed else ""), **attributes)


def boxes(corners: Iterable[tuple[float, float, float, float]], **attributes: object) -> Markup:
    """Rectangles (left, top, width, height) of one paint as one path, in tenths of a pixel.

    Separate elements would need four times the bytes.
    """
    drawn = []
    for left, top, width, height in corners:
        x, y = round(left * 10), round(top * 10)
        across, down = round((left + width) * 10) - x, round((top + height) * 10) - y
        start = f"M{_tenths(x)} {_tenths(y)}"
        drawn.append(f"{start}h{_tenths(across)}v{_tenths(down)}h{_tenths(-across)}z")
    return tag("path", d="".join(drawn), **attributes) if drawn else Markup("")


def _way(x: int, y: int) -> str:
    if x and y:
        return f"l{_tenths(x)} {_tenths(y)}"
    return f"h{_tenths(x)}" if x else f"v{_tenths(y)}"


def _tenths(value: int) -> str:
    return f"{value / 10:g}"


def drawing(
    b: Bilingual,
    name: str,
    size: tuple[float, float],
    title: Message,
    description: Message,
    children: Iterable[Markup],
    *,
    table: str,
    **attributes: object,
) -> Markup:
    """An image with name and description in both languages.

    ``aria-labelledby`` refers to the run's language until the page's script switches it. ``table``
    is the id of an element with the same figures as text.
    """
    return tag(
        "svg",
        *_head(b, name, "title", title),
        *_head(b, name, "desc", description),
        *children,
        id=name,
        viewBox=f"0 0 {size[0]:g} {size[1]:g}",
        role="img",
        aria_labelledby=f"{name}-title-{b.lang}",
        aria_describedby=f"{name}-desc-{b.lang}",
        aria_details=table,
        **attributes,
    )


def _head(b: Bilingual, name: str, element: str, label: Message) -> list[Markup]:
    """Name or description in both languages."""
    return [
        tag(element, b.plain(lang, label), id=f"{name}-{element}-{lang}", lang=lang)
        for lang in b.order
    ]


@dataclass(frozen=True, slots=True)
class Scale:
    """Linear scale from [``bottom``, ``top``] to [``start``, ``end``]."""

    top: float
    start: float
    end: float
    bottom: float = 0.0

    def __call__(self, value: float) -> float:
        """Map ``value``."""
        span = self.top - self.bottom
        share = (value - self.bottom) / span if span else 0.0
        return self.start + (self.end - self.start) * share


def binary_ticks(top: float, most: int = 5) -> list[int]:
    """Multiples of a power of two from 0 to ``top``."""
    step = 1
    while top / step > most:
        step *= 2
    return list(range(0, int(top) + 1, step))


def decimal_ticks(top: float, most: int = 6) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten from 0 to ``top``."""
    if top <= 0:
        return [0.0]
    unit = 10.0 ** math.floor(math.log10(top / most))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= top / most * 0.999)
    return [index * step for index in range(int(top / step + 1e-9) + 1)]


def fill(state: SlotState | str) -> str:
    """Paint of a state: a pattern of :func:`patterns`, or a plain colour.

    A pattern without marks would be printed as an image.
    """
    return f"var(--{_PLAIN[state]})" if state in _PLAIN else f"url(#p-{state})"


def swatch(state: SlotState | str) -> Markup:
    """Sample of a state's paint, for legends."""
    inner = rect(0.5, 0.5, 21, 13, fill=fill(state), class_="edge")
    return tag("svg", inner, viewBox="0 0 22 14", class_="swatch", aria_hidden="true")


_OTHERS = (
    "allocated", "wasted", "written_later", "never_written",
    "queued", "prefill", "decode", "preempted", "held",
)  # fmt: skip

_PLAIN = {"live": "live", "free": "free", "allocated": "allocated", "decode": "live"}

# Marks that distinguish states without colour, in a tile of 8 x 8.
_TILES: dict[str, Markup] = {
    "padding": Markup('<circle cx="2" cy="2" r="1.1"/><circle cx="6" cy="6" r="1.1"/>'),
    "finished": Markup('<path d="M0 0L8 8M8 0L0 8"/>'),
    "unwritten": Markup('<path d="M-2 2L2 -2M0 8L8 0M6 10L10 6"/>'),
    "rounding": Markup('<path d="M0 4H8"/>'),
    "never_written": Markup('<path d="M0 0L8 8M-2 6L2 10M6 -2L10 2"/>'),
    "written_later": Markup('<path d="M2 0V3M6 4V7"/>'),
    "cached": Markup('<path d="M4 0V8"/>'),
    "hole": Markup('<path d="M0 4H8M4 0V8"/>'),
    "engine": Markup('<path d="M0 0L8 8M-2 6L2 10M6 -2L10 2"/>'),
    "watermark": Markup('<path d="M0 6L4 2L8 6"/>'),
    "queued": Markup('<path d="M1 4H3M5 4H7"/>'),
    "prefill": Markup('<path d="M-2 6L2 10M0 0L8 8M6 -2L10 2"/>'),
    "preempted": Markup('<path d="M0 0L8 8M8 0L0 8"/>'),
    "held": Markup('<circle cx="2" cy="2" r="1.1"/><circle cx="6" cy="6" r="1.1"/>'),
}


# On paper: vector from stripe to stripe, and the stripe's share.
_STRIPES: dict[str, tuple[float, float, float]] = {
    "padding": (3, 0, 0.3), "finished": (0, 3, 0.4), "unwritten": (3, 3, 0.2),
    "wasted": (3, 3, 0.2), "rounding": (0, 8, 0.15), "never_written": (2, -2, 0.35),
    "written_later": (7, 0, 0.15), "cached": (8, 0, 0.2), "hole": (0, 5, 0.3),
    "engine": (2, 2, 0.4), "watermark": (0, 6, 0.15), "queued": (0, 4, 0.2),
    "prefill": (3, -3, 0.2), "preempted": (0, 3, 0.4), "held": (3, 0, 0.3),
}  # fmt: skip


def patterns() -> Markup:
    """Definitions used by all drawings, included once per page.

    Patterns are printed as large images, so the style sheet replaces them by repeated gradients on
    paper.
    """
    made = [_pattern(state.value) for state in SlotState]
    made += [_pattern(name) for name in _OTHERS]
    made += [_stripes(name) for name in _STRIPES]
    return tag(
        "svg", tag("defs", *made), class_="definitions", width=0, height=0, aria_hidden="true",
        focusable="false",
    )  # fmt: skip


def _stripes(state: str) -> Markup:
    x, y, ink = _STRIPES[state]
    stops = [(0.0, f"g-{state}"), (1 - ink, f"g-{state}"), (1 - ink, "ink"), (1.0, "ink")]
    return tag(
        "linearGradient",
        *(tag("stop", offset=offset, class_=f"stop {kind}") for offset, kind in stops),
        id=f"h-{state}", gradientUnits="userSpaceOnUse", x1=0, y1=0, x2=x, y2=y,
        spreadMethod="repeat",
    )  # fmt: skip


def _pattern(state: str) -> Markup:
    tile = _TILES.get("unwritten" if state == "wasted" else state, Markup(""))
    return tag(
        "pattern",
        rect(0, 0, 8, 8, class_=f"ground g-{state}"),
        tag("g", tile, class_=f"mark m-{state}"),
        id=f"p-{state}",
        width=8,
        height=8,
        patternUnits="userSpaceOnUse",
    )
