"""A sweep as lines over evenly spaced points: its points are mostly powers of something."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from experiment.messages import message
from experiment.report.bilingual import Bilingual
from experiment.report.charts import Width, both_widths
from experiment.report.simulation.figures import Unit, Value
from experiment.report.simulation.sweeps import Sweep
from experiment.report.simulation.writing import written
from experiment.report.svg import Scale, decimal_ticks, drawing, line, path, tag, text

_HEIGHT = 230
# Lines are told apart without colour by their marks.
_MARKS = (
    "M-4 -4H4V4H-4Z", "M0 -5L5 4H-5Z", "M0 -5L5 0L0 5L-5 0Z", "M-5 -4H5L0 5Z",
    "M-4.5 0A4.5 4.5 0 1 0 4.5 0A4.5 4.5 0 1 0 -4.5 0Z", "M-5 -1H-1V-5H1V-1H5V1H1V5H-1V1H-5Z",
    "M-4 -4L4 4M4 -4L-4 4",
)  # fmt: skip


def sweep_chart(b: Bilingual, sweep: Sweep) -> Markup:
    """All lines of a sweep in one drawing."""
    return both_widths(lambda width: _chart(b, sweep, width))


def line_swatch(index: int) -> Markup:
    """A small sample of a line, for the legend."""
    stroke = tag("path", d="M0 7H22", class_=f"series s{index}")
    shape = tag("path", d=_MARKS[index % len(_MARKS)], class_=f"point s{index}",
                transform="translate(11 7)")  # fmt: skip
    return tag("svg", stroke, shape, viewBox="0 0 22 14", class_="swatch", aria_hidden="true")


def _chart(b: Bilingual, sweep: Sweep, width: Width) -> Markup:
    left, right = (56, 16) if width.narrow else (70, 30)
    y = _scale(sweep)
    places = _places(len(sweep.axis), left + 14, width.pixels - right - 14)
    parts = _frame(b, sweep, y, (left, width.pixels - right))
    parts += _axis(b, sweep, places, width)
    for index, values in enumerate(sweep.lines.values()):
        parts += _line(values, places, y, index)
    name = sweep.name.replace("_", "-")
    return drawing(
        b, f"sweep-{name}-{width.name}", (width.pixels, _HEIGHT + 62),
        message(f"sim.sweep.{sweep.name}.title"), message(f"sim.sweep.{sweep.name}.about"), parts,
        class_=f"chart {width.name}",
    )  # fmt: skip


def _scale(sweep: Sweep) -> Scale:
    known = [value for values in sweep.lines.values() for value in values if value is not None]
    top = max(known, default=0) or 1
    if sweep.unit == "share":
        top = min(1.0, top * 1.08)
    return Scale(top, _HEIGHT, 14)


def _places(count: int, start: float, end: float) -> list[float]:
    if count == 1:
        return [(start + end) / 2]
    return [start + (end - start) * index / (count - 1) for index in range(count)]


def _frame(b: Bilingual, sweep: Sweep, y: Scale, span: tuple[float, float]) -> list[Markup]:
    parts = []
    for tick in decimal_ticks(y.top, 5):
        parts.append(line(span[0], y(tick), span[1], y(tick), class_="grid"))
        shown = _tick(tick, sweep.unit)
        parts.append(text(b, span[0] - 8, y(tick) + 4, shown, class_="t small end num"))
    parts.append(line(span[0], y(0), span[1], y(0), class_="axis"))
    return parts


def _tick(value: float, unit: Unit) -> str:
    if unit == "seconds":
        return written(value, unit)
    return f"{value * 100:g} %" if unit == "share" else f"{value:,g}"


def _axis(b: Bilingual, sweep: Sweep, places: Sequence[float], width: Width) -> list[Markup]:
    parts = []
    every = -(-len(places) * (64 if sweep.axis_unit == "bytes" else 58) // width.pixels)
    for index, (x, value) in enumerate(zip(places, sweep.axis, strict=True)):
        own = value == sweep.mark
        parts.append(line(x, _HEIGHT, x, _HEIGHT + 4, class_="axis"))
        if own:
            parts.append(line(x, 14, x, _HEIGHT, class_="moment"))
        if index % every == 0 or own:
            style = "t small middle num" + (" strong" if own else "")
            label = written(value, sweep.axis_unit)
            parts.append(text(b, x, _HEIGHT + 18, label, class_=style))
    label_at = (places[0] + places[-1]) / 2
    title = message(f"sim.sweep.{sweep.name}.axis")
    parts.append(text(b, label_at, _HEIGHT + 40, title, class_="t small soft middle"))
    return parts


def _line(values: Sequence[Value], places: Sequence[float], y: Scale, index: int) -> list[Markup]:
    """A gap where nothing is known."""
    parts: list[Markup] = []
    piece: list[tuple[float, float]] = []
    for x, value in [*zip(places, values, strict=True), (0.0, None)]:
        if value is not None:
            piece.append((x, y(value)))
            continue
        if len(piece) > 1:
            parts.append(path(piece, class_=f"series s{index}"))
        piece = []
    for x, value in zip(places, values, strict=True):
        if value is not None:
            place = f"translate({x:.1f} {y(value):.1f})"
            shape = _MARKS[index % len(_MARKS)]
            parts.append(tag("path", d=shape, class_=f"point s{index}", transform=place))
    return parts
