"""Latency of the requests: a table of median, 95th percentile and maximum, and a curve.

A percentile of too few requests is a dash.
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
from experiment.report.html.charts import Width, both_widths, grid, x_axis
from experiment.report.html.svg import Scale, drawing, path, tag
from experiment.report.page.parts import Cell, Row, why_unknown
from experiment.text.messages import Message, arm_message, message

FEWEST = 8  # minimum requests of a curve
_HEIGHT = 190
_MAX_POINTS = 300
_SHARES = (10, 25, 50, 75, 90, 95, 100)
_PARTS: Mapping[str, Callable[[Sequence[float]], float | None]] = {
    "median": median, "p95": lambda times: percentile(times, 95), "max": max,
}  # fmt: skip
_FEW = message("experiments.reason.few_requests")


def latency_rows(results: Results) -> list[Row]:
    """Waiting time, TTFT and latency of each arm's requests: median, P95, maximum."""
    if not any(len(arm.requests) > 1 for arm in results.arms):
        return []
    return [
        Row(METRICS[f"{name}_{part}_s"].label, [_cell(arm, name, of) for arm in results.arms])
        for name in ("wait", "first_token", "latency")
        for part, of in _PARTS.items()
    ]


def _cell(arm: ArmResult, name: str, of: Callable[[Sequence[float]], float | None]) -> Cell:
    """A cell, with the reason if there are too few requests for a percentile."""
    times = _times(name, arm.requests)
    shown = seconds(of(times)) if times else None
    return Cell(shown, reason=None if shown else _FEW if times else why_unknown(arm))


@dataclass(frozen=True, slots=True)
class Curve:
    """A chart of the requests' times, with the arms and the numbers of their lines.

    ``rows`` is the same as a table: times by which shares of an arm's requests were served.
    """

    name: str
    chart: Markup
    arms: list[tuple[int, Message]]
    rows: list[tuple[str, list[Cell]]]


def curves(b: Bilingual, results: Results) -> list[Curve]:
    """Curves of TTFT and latency over shares of requests, for arms with enough requests."""
    arms = [arm for arm in results.arms if len(arm.requests) >= FEWEST]
    if not arms:
        return []
    # Of all cells, as in the charts of an experiment.
    names = results.experiment.arms if results.experiment else [arm.arm for arm in results.arms]
    numbers = arm_series(names)
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
    """Time by which ``share`` percent of an arm's requests were served; a reason if too few."""
    times = _times(name, arm.requests)
    shown = seconds(percentile(times, share))
    return Cell(shown, reason=_FEW if times and shown is None else None)


def _draw(
    b: Bilingual, name: str, arms: Sequence[ArmResult], numbers: Mapping[str, int], width: Width
) -> Markup:
    times = [sorted(_times(name, arm.requests)) for arm in arms]
    left = 46
    x = Scale(
        max((seconds[-1] for seconds in times if seconds), default=1.0), left, width.pixels - 8
    )
    y = Scale(1, 10 + _HEIGHT, 10)
    shares = (0.0, 0.25, 0.5, 0.75, 1.0)
    parts = grid(b, x, y, ((share, f"{share * 100:.0f}\u00a0%") for share in shares))
    parts += x_axis(b, x, y(0), message(f"chart.{name}.axis"))
    parts += [
        path(_stairs(seconds, x, y), class_=_style(numbers[arm.arm]))
        for arm, seconds in zip(arms, times, strict=True)
    ]
    return drawing(
        b, f"{name}-{width.name}", (width.pixels, y(0) + 46), message(f"chart.{name}.title"),
        message(f"chart.{name}.desc"), parts, table=f"{name}-data", class_=f"chart {width.name}",
    )  # fmt: skip


def curve_swatch(number: int) -> Markup:
    """Sample of a curve, for the legend."""
    stroke = tag("path", d="M0 7H22", class_=_style(number))
    return tag("svg", stroke, viewBox="0 0 22 14", class_="swatch", aria_hidden="true")


def _style(number: int) -> str:
    """Colour and dashes of a curve."""
    return f"series s{number} dash{number}"


def _times(name: str, requests: Sequence[RequestResult]) -> list[float]:
    """Known times in seconds: ``wait``, ``first_token`` or ``latency``."""
    seconds: Iterable[float | None] = (getattr(request, f"{name}_s") for request in requests)
    return [value for value in seconds if value is not None]


def _stairs(seconds: list[float], x: Scale, y: Scale) -> list[tuple[float, float]]:
    """Step curve of the share of finished requests, with a limited number of steps."""
    skip = -(-len(seconds) // _MAX_POINTS)
    points = [(x(0), y(0))]
    for rank, value in enumerate(seconds, 1):
        if rank % skip == 0 or rank == len(seconds):
            points += [(x(value), points[-1][1]), (x(value), y(rank / len(seconds)))]
    return points
