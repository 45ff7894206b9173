"""Charts of the HTML report: slots over time, and small bars."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from experiment.report.facts.bilingual import Bilingual
from experiment.report.facts.series import Series
from experiment.report.facts.texts import Keyed
from experiment.report.html.svg import (
    Scale,
    binary_ticks,
    decimal_ticks,
    drawing,
    fill,
    line,
    path,
    rect,
    tag,
    text,
)
from experiment.text import format_bytes
from experiment.text.messages import Message, arm_message, message


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


_MAX_ROWS = 480  # half of them on the narrow drawing


@dataclass(frozen=True, slots=True)
class Width:
    """One of the two widths of every chart; text has the same size in both."""

    name: str
    pixels: int

    @property
    def narrow(self) -> bool:
        """Whether this is the width for phones."""
        return self.name == "narrow"


WIDE = Width("wide", 920)
NARROW = Width("narrow", 350)


def both_widths(draw: Callable[[Width], Markup]) -> Markup:
    """Draw in both widths; the style sheet shows one of them."""
    return draw(WIDE) + draw(NARROW)


def slot_grid(
    b: Bilingual, scales: tuple[Scale, Scale], ticks: Sequence[int], slot_bytes: float, width: Width
) -> list[Markup]:
    """Grid with slots on the left, and their bytes on the right of a wide chart."""
    x, y = scales
    parts = grid(b, x, y, ((tick, f"{tick:,}") for tick in ticks))
    for tick in () if width.narrow else ticks:
        size = format_bytes(tick * slot_bytes) if tick else "0"
        parts.append(text(b, x.end + 8, y(tick) + 4, size, class_="t small soft num tick"))
    return parts


def time_chart(
    b: Bilingual, series: Sequence[Series], prefill: Mapping[str, Sequence[bool]], by_step: bool
) -> Markup:
    """Slots over time, with a panel per arm and shared axes.

    ``prefill``: for each arm and step, whether it computed prompt tokens; such steps are shaded.
    """
    chosen = [s.by_step() if by_step else s for s in series]
    shaded = {s.arm: _spans(s, prefill.get(s.arm, ())) for s in chosen}

    def draw(width: Width) -> Markup:
        most = _MAX_ROWS // 2 if width.narrow else _MAX_ROWS
        return _time_chart(b, [s.thinned(most) for s in chosen], shaded, by_step, width)

    return both_widths(draw)


def thinned(series: Sequence[Series]) -> int | None:
    """Maximum steps of an arm if too many to be drawn individually; otherwise None."""
    most = max((len(one.rows) for one in series), default=0)
    return most if most > _MAX_ROWS else None


_PANEL = 42
_GAP = 32


Spans = list[tuple[float, float]]


def _spans(one: Series, chosen: Sequence[bool]) -> Spans:
    """Intervals of the chosen steps, with neighbours merged."""
    spans: Spans = []
    for (start, end), wanted in zip(pairwise(one.edges), chosen, strict=False):
        if wanted and spans and spans[-1][1] == start:
            spans[-1] = (spans[-1][0], end)
        elif wanted:
            spans.append((start, end))
    return spans


def _time_chart(
    b: Bilingual, series: Sequence[Series], shaded: Mapping[str, Spans], by_step: bool, width: Width
) -> Markup:
    left, right = (52, 4) if width.narrow else (56, 84)
    x = Scale(max((s.end for s in series), default=1), left, width.pixels - right)
    top = max((row.reserved for s in series for row in s.rows), default=1)
    parts: list[Markup] = []
    y = 14.0
    for one in series:
        parts.append(text(b, left, y, arm_message(one.arm), class_="t strong"))
        if one is series[0]:
            parts.append(text(b, left - 8, y, message("chart.slots"), class_="t small soft end"))
        scale = Scale(top, y + 12 + _PANEL, y + 12)
        parts += _panel(b, one, shaded[one.arm], (x, scale), width)
        y += _PANEL + _GAP
    bottom = y - _GAP + 18
    # Without readings, time begins with the first step, as in the timeline of requests.
    marked = any(one.marks for one in series)
    axis = "steps" if by_step else "time" if marked else "life"
    parts += x_axis(b, x, bottom, message(f"chart.{axis}.axis"))
    unit = "steps" if by_step else "time"
    return drawing(
        b, f"over-{unit}-{width.name}", (width.pixels, bottom + 44),
        message(f"chart.{unit}.title"), message(f"chart.{unit}.desc"), parts, table="time-data",
        class_=f"chart {width.name}",
    )  # fmt: skip


def _panel(
    b: Bilingual, one: Series, shaded: Spans, scales: tuple[Scale, Scale], width: Width
) -> list[Markup]:
    x, y = scales
    flat = [0.0] * len(one.rows)
    allocated, live = ([getattr(row, name) for row in one.rows] for name in ("allocated", "live"))
    reserved = stairs(one.edges, [row.reserved for row in one.rows])
    return [
        *slot_grid(b, scales, binary_ticks(y.top, 2), one.slot_bytes, width),
        # Live is painted over allocated, so that the visible rest is wasted.
        band(one.edges, flat, allocated, scales, "wasted"),
        band(one.edges, flat, live, scales, "live"),
        _shade(shaded, scales),
        path([(x(px), y(py)) for px, py in reserved], class_="trace reserved"),
    ]


def stairs(edges: Sequence[float], values: Sequence[float]) -> list[tuple[float, float]]:
    """Corners of a step curve; equal values are merged."""
    points: list[tuple[float, float]] = []
    for (start, end), value in zip(pairwise(edges), values, strict=True):
        if points and points[-1][1] == value:
            points[-1] = (end, value)
        else:
            points += [(start, value), (end, value)]
    return points


def band(
    edges: Sequence[float],
    below: Sequence[float],
    above: Sequence[float],
    scales: tuple[Scale, Scale],
    paint: str,
) -> Markup:
    """The area between two step curves."""
    x, y = scales
    corners = [*stairs(edges, above), *reversed(stairs(edges, below))]
    return path([(x(px), y(py)) for px, py in corners], closed=True, fill=fill(paint))


def evenly(count: int, most: int) -> list[int]:
    """At most ``most`` evenly spaced indices of a list for a table, including first and last."""
    return sorted({round((count - 1) * row / (most - 1)) for row in range(most)}) if count else []


def _shade(spans: Spans, scales: tuple[Scale, Scale]) -> Markup:
    """Shade intervals over the height of a panel, each at least a pixel wide, as one path."""
    x, y = scales
    pieces: Spans = []
    for start, end in spans:
        left, right = x(start), max(x(end), x(start) + 1)
        if pieces and left - pieces[-1][1] < 1:
            left = pieces.pop()[0]
        pieces.append((left, right))
    height = f"V{y(y.top):.1f}", f"V{y(0):.1f}"
    drawn = [f"M{a:.1f} {y(0):.1f}{height[0]}H{z:.1f}{height[1]}Z" for a, z in pieces]
    return tag("path", d="".join(drawn), class_="shaded") if drawn else Markup("")


Bar = tuple[Message, float | None, str | Message | Keyed]


def small_bars(b: Bilingual, claim: str, rows: Sequence[Bar], paint: str) -> Markup:
    """Bars with labels and values; no bar if unknown."""
    top = max((value for _, value, _ in rows if value), default=1.0) or 1.0
    scale = Scale(top, 0, 236)
    parts: list[Markup] = []
    for index, (label, value, shown) in enumerate(rows):
        y = index * 42
        parts.append(text(b, 0, y + 14, label, class_="t small"))
        parts.append(rect(0, y + 20, 236, 12, class_="track"))
        if value:
            parts.append(rect(0, y + 20, scale(value), 12, fill=fill(paint)))
        parts.append(text(b, 300, y + 30.5, shown, class_="t num strong end"))
    return drawing(
        b, f"claim-{claim}", (300, len(rows) * 42), message(f"claim.{claim}.title"),
        message(f"report.claims.{claim}_caption"), parts, table=f"claim-{claim}-data",
        class_="bars",
    )  # fmt: skip
