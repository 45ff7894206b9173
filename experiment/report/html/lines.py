"""Line charts over evenly spaced points, such as those of a sweep or experiment."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from markupsafe import Markup

from experiment.analysis.experiment_results import Unit
from experiment.report.facts.bilingual import Bilingual
from experiment.report.facts.simulation_figures import Value
from experiment.report.facts.texts import Keyed, Words
from experiment.report.facts.values import written
from experiment.report.html.charts import Width, both_widths, grid
from experiment.report.html.svg import (
    Label,
    Scale,
    binary_ticks,
    decimal_ticks,
    drawing,
    line,
    path,
    tag,
    text,
)
from experiment.text.messages import Message


def figure(
    b: Bilingual,
    title: Words,
    picture: Markup,
    legend: Iterable[tuple[Markup, Words]] = (),
    notes: Iterable[Words] = (),
) -> Markup:
    """The chart below its title, samples with their labels, and notes in small letters."""
    item, caption = Markup("<li>{}<bdi>{}</bdi></li>"), Markup("<figcaption>{}</figcaption>")
    items = Markup("").join(item.format(sample, b.words(label)) for sample, label in legend)
    below = Markup('<ul class="legend">{}</ul>').format(items) if items else items
    said = Markup(" ").join(map(b.words, notes))
    return Markup('<figure><p class="over">{}</p>{}{}{}</figure>').format(
        b.words(title), picture, below, caption.format(said) if said else said
    )


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


_MARK_SPACING = 14  # pixels between marks of a column
_STROKE_SPACING = 4  # between vertical strokes
# Marks distinguish lines without colour.
_MARKS = (
    "M-4 -4H4V4H-4Z", "M0 -5L5 4H-5Z", "M0 -5L5 0L0 5L-5 0Z", "M-5 -4H5L0 5Z",
    "M-4.5 0A4.5 4.5 0 1 0 4.5 0A4.5 4.5 0 1 0 -4.5 0Z", "M-5 -1H-1V-5H1V-1H5V1H1V5H-1V1H-5Z",
    "M-4 -4L4 4M4 -4L-4 4", "M-4 -5L5 0L-4 5Z", "M4 -5L-5 0L4 5Z", "M-2 -5H2V5H-2Z",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LineChart:
    """Lines over points.

    Attributes:
        name: id of the drawing, unique in the page.
        table: id of the table with the same values.
        points: labels of the axis.
        lines: values per point; None is a gap.
        spans: (minimum, maximum) per line and point, drawn as a vertical stroke; None: no stroke.
        mark: index of a highlighted point.
        joined: whether points are numbers of one quantity and are connected; otherwise marks only.
        series: number of each line, for colour and mark; empty: by index.
        top: index of the line drawn last, dashed with open marks, so that equal ones stay visible;
            None: no line.
    """

    name: str
    table: str
    title: Message
    about: Message
    axis: Message
    points: Sequence[Label]
    lines: Sequence[Sequence[Value]]
    unit: Unit
    spans: Sequence[Sequence[tuple[float, float] | None]] = ()
    mark: int | None = None
    joined: bool = True
    top: int | None = None
    series: Sequence[int] = ()


def line_chart(b: Bilingual, chart: LineChart) -> Markup:
    """Draw all lines in both widths."""
    return both_widths(partial(_chart, b, chart))


def line_swatch(index: int, on_top: bool = False) -> Markup:
    """Sample of a line for the legend; ``on_top``: of ``LineChart.top``."""
    stroke = tag("path", d="M0 7H22", class_=_series(index, on_top))
    shape = _mark(index, 11, 7, on_top)
    return tag("svg", stroke, shape, viewBox="0 0 22 14", class_="swatch", aria_hidden="true")


def _series(index: int, on_top: bool) -> str:
    return f"series over s{index}" if on_top else f"series s{index}"


def _mark(index: int, x: float, y: float, on_top: bool) -> Markup:
    """A mark; on top it is larger and open."""
    place, shape = f"translate({x:g} {y:g})", _MARKS[index % len(_MARKS)]
    if not on_top:
        return tag("path", d=shape, class_=f"point s{index}", transform=place)
    return tag("path", d=shape, class_=f"point open s{index}", transform=f"{place} scale(1.6)")


def _chart(b: Bilingual, chart: LineChart, width: Width) -> Markup:
    y = _scale(chart)
    least, right = (56, 16) if width.narrow else (70, 30)
    ticks = [(tick, _tick(tick, chart)) for tick in _ticks(y, chart.unit)]
    left = max(least, 10 + max(text_pixels(label) for _, label in ticks))
    end = width.pixels - right
    places = _places(len(chart.points), left + 14, end - 14, chart.joined)
    parts = grid(b, Scale(1, left, end), y, ticks)
    parts.append(line(left, y(0), end, y(0), class_="axis"))
    labels, below = point_labels(b, chart.points, places, width.pixels, chart.joined, chart.mark)
    parts += _axis(b, chart, places, below) + labels
    for index in sorted(range(len(chart.lines)), key=lambda place: place == chart.top):
        values = chart.lines[index]
        spans = chart.spans[index] if chart.spans else (None,) * len(values)
        own = [place + _offset(chart, index, places) for place in places]
        parts += _spans(spans, own, y, _number(chart, index))
        parts += _line(chart, own, y, index)
    return drawing(
        b, f"{chart.name}-{width.name}", (width.pixels, below + 27), chart.title, chart.about,
        parts, table=chart.table, class_=f"chart {width.name}",
    )  # fmt: skip


def _number(chart: LineChart, index: int) -> int:
    return chart.series[index] if chart.series else index


def _scale(chart: LineChart) -> Scale:
    known = [value for values in chart.lines for value in values if value is not None]
    known += [end for spans in chart.spans for span in spans if span is not None for end in span]
    bottom, top = min([0.0, *known]), max([0.0, *known])
    if top <= bottom:
        return Scale(1, HEIGHT, 14, bottom)
    step = _step(top - bottom, chart.unit)
    return Scale(math.ceil(top / step - 1e-9) * step, HEIGHT, 14, bottom)


def _places(count: int, start: float, end: float, joined: bool) -> list[float]:
    """X coordinates of points: from edge to edge if joined, otherwise centred in columns."""
    if not joined:
        return [start + (end - start) * (index + 0.5) / count for index in range(count)]
    if count == 1:
        return [(start + end) / 2]
    return [start + (end - start) * index / (count - 1) for index in range(count)]


def _offset(chart: LineChart, index: int, places: Sequence[float]) -> float:
    """Horizontal offset of a line's marks or strokes within the column, to avoid overlaps."""
    if chart.joined and not any(any(spans) for spans in chart.spans):
        return 0.0
    known = [at for at, line in enumerate(chart.lines) if any(v is not None for v in line)]
    step: float = _STROKE_SPACING if chart.joined else _MARK_SPACING
    if len(places) > 1 and known:
        step = min(step, (places[1] - places[0]) / (len(known) + 0.5))
    return (known.index(index) - (len(known) - 1) / 2) * step if index in known else 0.0


def _step(span: float, unit: Unit) -> float:
    return binary_ticks(span)[1] if unit == "bytes" and span > 1 else decimal_ticks(span, 5)[1]


def _ticks(y: Scale, unit: Unit) -> list[float]:
    """Round numbers over the axis, including 0."""
    step = _step(y.top - y.bottom, unit)
    return [step * n for n in range(-int(-y.bottom / step + 1e-9), int(y.top / step + 1e-9) + 1)]


def _tick(tick: float, chart: LineChart) -> str:
    if chart.unit == "share":
        return f"{tick * 100:,g} %"
    if chart.unit == "seconds" and tick:  # ticks are round: 50 ms instead of 50.0 ms
        return f"{tick:,g} s" if abs(tick) >= 1 else f"{tick * 1000:g} ms"
    return written(tick, chart.unit) if chart.unit in ("seconds", "bytes") else f"{tick:,g}"


def _axis(b: Bilingual, chart: LineChart, places: Sequence[float], below: float) -> list[Markup]:
    """Ticks, and the name of the axis at the y coordinate ``below``."""
    parts = [line(x, HEIGHT, x, HEIGHT + 4, class_="axis") for x in places]
    if chart.mark is not None:
        x = places[chart.mark]
        parts.append(line(x, 14, x, HEIGHT, class_="moment"))
    label_at = (places[0] + places[-1]) / 2
    parts.append(text(b, label_at, below + 5, chart.axis, class_="t small soft middle"))
    return parts


def _spans(
    spans: Sequence[tuple[float, float] | None], places: Sequence[float], y: Scale, number: int
) -> list[Markup]:
    pairs = ((x, span) for x, span in zip(places, spans, strict=True) if span is not None)
    style = f"series span s{number}"
    return [line(x, y(low), x, y(high), class_=style) for x, (low, high) in pairs]


def _line(chart: LineChart, places: Sequence[float], y: Scale, index: int) -> list[Markup]:
    """A line with gaps at unknown values."""
    parts: list[Markup] = []
    piece: list[tuple[float, float]] = []
    values, on_top, number = chart.lines[index], index == chart.top, _number(chart, index)
    for x, value in [*zip(places, values, strict=True), (0.0, None)]:
        if value is not None:
            piece.append((x, y(value)))
            continue
        if chart.joined and len(piece) > 1:
            parts.append(path(piece, class_=_series(number, on_top)))
        piece = []
    known = ((x, value) for x, value in zip(places, values, strict=True) if value is not None)
    parts += [_mark(number, round(x, 1), round(y(value), 1), on_top) for x, value in known]
    return parts
