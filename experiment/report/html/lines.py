"""Line charts over evenly spaced points, such as those of a sweep or experiment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from experiment.analysis.experiment_results import Unit
from experiment.report.facts.bilingual import Bilingual
from experiment.report.facts.simulation_figures import Value
from experiment.report.facts.values import written
from experiment.report.html.axes import grid
from experiment.report.html.charts import NARROW, WIDE, Width
from experiment.report.html.line_labels import HEIGHT, point_labels, text_pixels
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


def line_chart(b: Bilingual, chart: LineChart, wide: Width = WIDE) -> Markup:
    """Draw all lines in both widths; ``wide`` is that of a large screen."""
    return _chart(b, chart, wide) + _chart(b, chart, NARROW)


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
    left = max(least, 10 + max(text_pixels(_tick(tick, chart)) for tick in _ticks(y, chart.unit)))
    places = _places(len(chart.points), left + 14, width.pixels - right - 14, chart.joined)
    parts = _frame(b, chart, y, (left, width.pixels - right))
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
    if chart.unit == "share" and 0 < top <= 1:
        top = min(1.0, top * 1.08)
    return Scale(top if top > bottom else 1, HEIGHT, 14, bottom)


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


def _frame(b: Bilingual, chart: LineChart, y: Scale, span: tuple[float, float]) -> list[Markup]:
    ticks = ((tick, _tick(tick, chart)) for tick in _ticks(y, chart.unit))
    parts = grid(b, Scale(1, *span), y, ticks)
    return [*parts, line(span[0], y(0), span[1], y(0), class_="axis")]


def _ticks(y: Scale, unit: Unit) -> list[float]:
    """Round numbers over the axis, including 0."""
    span = y.top - y.bottom
    step = binary_ticks(span)[1] if unit == "bytes" and span > 1 else decimal_ticks(span, 5)[1]
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
