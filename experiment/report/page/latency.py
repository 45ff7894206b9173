"""Latency of the requests: a table of medians, 95th percentiles and the longest, and a curve.

A percentile of too few requests is a dash; the curve is drawn where several ran.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from markupsafe import Markup

from experiment.analysis.metrics import METRICS
from experiment.analysis.percentiles import percentile
from experiment.analysis.results import ArmResult, RequestResult, Results
from experiment.report.facts.arm_series import arm_series
from experiment.report.facts.bilingual import Bilingual
from experiment.report.facts.values import seconds
from experiment.report.html.charts import Width, both_widths
from experiment.report.html.svg import Scale, decimal_ticks, drawing, line, path, tag, text
from experiment.report.page.parts import Cell, Row, why_unknown
from experiment.text.messages import Message, arm_message, message

FEWEST = 8  # a curve over fewer requests shows the requests, not a distribution
_HEIGHT = 190
_MOST_POINTS = 300
_SHARES = (10, 25, 50, 75, 90, 95, 100)
_PARTS: Mapping[str, Callable[[Sequence[float]], float | None]] = {
    "median": median, "p95": lambda times: percentile(times, 95), "max": max,
}  # fmt: skip
_FEW = message("experiments.reason.few_requests")


def latency_rows(results: Results) -> list[Row]:
    """Waiting, first token and whole time of each arm's requests: median, P95, the longest."""
    if not any(len(arm.requests) > 1 for arm in results.arms):
        return []
    return [
        Row(METRICS[f"{name}_{part}_s"].label, [_cell(arm, name, of) for arm in results.arms])
        for name in ("wait", "first_token", "latency")
        for part, of in _PARTS.items()
    ]


def _cell(arm: ArmResult, name: str, of: Callable[[Sequence[float]], float | None]) -> Cell:
    """Where an arm's requests are too few for a percentile, its cell says so."""
    times = _times(name, arm.requests)
    shown = seconds(of(times)) if times else None
    return Cell(shown, reason=None if shown else _FEW if times else why_unknown(arm))


@dataclass(frozen=True, slots=True)
class Curve:
    """A chart of the requests' times, and the arms on it, each with the number of its line.

    ``rows`` says the same in words: by when so many of an arm's requests were served.
    """

    name: str
    chart: Markup
    arms: list[tuple[int, Message]]
    rows: list[tuple[str, list[Cell]]]


def curves(b: Bilingual, results: Results) -> list[Curve]:
    """First token and whole time as shares of the requests, of arms with enough of them."""
    arms = [arm for arm in results.arms if len(arm.requests) >= FEWEST]
    if not arms:
        return []
    # Those of all cells, as in the charts of an experiment.
    everyone = results.experiment.arms if results.experiment else [arm.arm for arm in results.arms]
    numbers = arm_series(everyone)
    return [
        Curve(
            name,
            both_widths(partial(_draw, b, name, arms, numbers)),
            [(numbers[arm.arm], arm_message(arm.arm)) for arm in arms],
            [(f"{share} %", [_served(name, arm, share) for arm in arms]) for share in _SHARES],
        )
        for name in ("first_token", "latency")
    ]


def _served(name: str, arm: ArmResult, share: int) -> Cell:
    """The time within which that share of an arm's requests was served; too few have none."""
    times = _times(name, arm.requests)
    shown = seconds(percentile(times, share))
    return Cell(shown, reason=_FEW if times and shown is None else None)


def _draw(
    b: Bilingual, name: str, arms: Sequence[ArmResult], numbers: Mapping[str, int], width: Width
) -> Markup:
    times = [sorted(_times(name, arm.requests)) for arm in arms]
    left = 46
    x = Scale(max((found[-1] for found in times if found), default=1.0), left, width.pixels - 8)
    y = Scale(1, 10 + _HEIGHT, 10)
    parts: list[Markup] = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(line(left, y(share), x.end, y(share), class_="grid"))
        label = f"{share * 100:.0f}\u00a0%"
        parts.append(text(b, left - 8, y(share) + 4, label, class_="t small end num tick"))
    style = "t small middle num tick"
    parts += [text(b, x(at), y(0) + 18, f"{at:g}", class_=style) for at in decimal_ticks(x.top, 5)]
    axis = message(f"chart.{name}.axis")
    parts.append(text(b, (left + x.end) / 2, y(0) + 38, axis, class_="t small soft middle"))
    parts += [
        path(_stairs(found, x, y), class_=_style(numbers[arm.arm]))
        for arm, found in zip(arms, times, strict=True)
    ]
    return drawing(
        b, f"{name}-{width.name}", (width.pixels, y(0) + 46), message(f"chart.{name}.title"),
        message(f"chart.{name}.desc"), parts, table=f"{name}-data", class_=f"chart {width.name}",
    )  # fmt: skip


def curve_swatch(number: int) -> Markup:
    """A small sample of a curve, for the legend."""
    stroke = tag("path", d="M0 7H22", class_=_style(number))
    return tag("svg", stroke, viewBox="0 0 22 14", class_="swatch", aria_hidden="true")


def _style(number: int) -> str:
    """Curves differ in colour and in their dashes."""
    return f"series s{number} dash{number}"


def _times(name: str, requests: Sequence[RequestResult]) -> list[float]:
    """Those that are known: ``wait``, ``first_token`` or ``latency``."""
    found: Iterable[float | None] = (getattr(request, f"{name}_s") for request in requests)
    return [value for value in found if value is not None]


def _stairs(found: list[float], x: Scale, y: Scale) -> list[tuple[float, float]]:
    """The share of requests that were done by then; at most so many steps are drawn."""
    skip = -(-len(found) // _MOST_POINTS)
    points = [(x(0), y(0))]
    for rank, value in enumerate(found, 1):
        if rank % skip == 0 or rank == len(found):
            points += [(x(value), points[-1][1]), (x(value), y(rank / len(found)))]
    return points
