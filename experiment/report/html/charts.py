"""Charts of the HTML report: slots over time, and small bars."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from experiment.replay.step_rows import StepRow
from experiment.report.facts.bilingual import Bilingual
from experiment.report.facts.data_key import Keyed
from experiment.report.facts.series import Series
from experiment.report.html.axes import grid, x_axis
from experiment.report.html.svg import (
    Scale,
    binary_ticks,
    drawing,
    fill,
    path,
    rect,
    tag,
    text,
)
from experiment.text import format_bytes
from experiment.text.messages import Message, arm_message, message

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
    parts: list[Markup] = []
    parts += slot_grid(b, scales, binary_ticks(y.top, 2), one.slot_bytes, width)
    live = _steps(one, lambda row: row.live)
    allocated = _steps(one, lambda row: row.allocated)
    reserved = _steps(one, lambda row: row.reserved)
    # Live is painted over allocated, so that the visible rest is wasted.
    parts.append(_area(allocated, (x, y), "wasted"))
    parts.append(_area(live, (x, y), "live"))
    parts.append(_shade(shaded, (x, y)))
    parts.append(_trace(reserved, (x, y), "trace reserved"))
    return parts


Points = list[tuple[float, float]]


def _steps(one: Series, value: Callable[[StepRow], float]) -> Points:
    """Corners of a step curve; equal values are merged."""
    points: Points = []
    for (start, end), row in zip(pairwise(one.edges), one.rows, strict=True):
        height = value(row)
        if points and points[-1][1] == height:
            points[-1] = (end, height)
        else:
            points += [(start, height), (end, height)]
    return points


def _area(upper: Points, scales: tuple[Scale, Scale], paint: str) -> Markup:
    """The area between axis and points."""
    x, y = scales
    outline = [(upper[0][0], 0.0), *upper, (upper[-1][0], 0.0)]
    return path([(x(px), y(py)) for px, py in outline], closed=True, fill=fill(paint))


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


def _trace(points: Points, scales: tuple[Scale, Scale], style: str) -> Markup:
    x, y = scales
    return path([(x(px), y(py)) for px, py in points], class_=style)


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
