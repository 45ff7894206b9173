"""Charts of a simulation: slots over time, means, running, waiting and preempted requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from markupsafe import Markup

from experiment.report.facts.bilingual import Bilingual
from experiment.report.facts.simulation_figures import ALLOCATED, OTHER, Result, policy_of
from experiment.report.facts.values import written
from experiment.report.html.charts import Width, band, evenly, grid, slot_grid, x_axis
from experiment.report.html.svg import (
    Scale,
    binary_ticks,
    decimal_ticks,
    drawing,
    fill,
    line,
    path,
    rect,
    text,
)
from experiment.text.messages import message
from kvsim.contiguous.reservation import POLICIES

# Order of the stack from the bottom: live, wasted, cached, free.
STACK = (*ALLOCATED, *OTHER)
PARTS = (
    "live", "written_later", "never_written", "unwritten", "padding", "finished", "rounding",
    *OTHER,
)  # fmt: skip
_SECONDS = message("sim.chart.seconds")
_PANEL, _GAP = 96, 44
# Narrower pieces would be invisible.
_MAX_COLUMNS = 260
_MAX_MOMENTS = 12


def states_of(results: Sequence[Result]) -> list[str]:
    """States that occur in any policy, in the order of the stack."""
    return [
        name
        for name in STACK
        if any(each["states"].get(name, {"peak_slots": 0})["peak_slots"] for each in results)
    ]


def ledger_chart(b: Bilingual, results: Sequence[Result], width: Width) -> Markup:
    """Slots by state over time, with a panel per policy and shared axes."""
    left, right = (50, 4) if width.narrow else (64, 84)
    x = Scale(max(each["span_s"] for each in results) or 1, left, width.pixels - right)
    top = max(each["pool_slots"] for each in results)
    parts: list[Markup] = []
    y = 14.0
    for each in results:
        parts.append(text(b, left, y, policy_of(each), class_="t strong"))
        if each is results[0]:
            parts.append(text(b, left - 8, y, message("chart.slots"), class_="t small soft end"))
        scale = Scale(top, y + 10 + _PANEL, y + 10)
        parts += _panel(b, each, (x, scale), width)
        y += _PANEL + _GAP
    bottom = y - _GAP + 16
    parts += x_axis(b, x, bottom, _SECONDS)
    return drawing(
        b, f"ledger-{width.name}", (width.pixels, bottom + 44), message("sim.page.ledger.title"),
        message("sim.chart.ledger.desc"), parts, table="ledger-data", class_=f"chart {width.name}",
    )  # fmt: skip


def _panel(b: Bilingual, one: Result, scales: tuple[Scale, Scale], width: Width) -> list[Markup]:
    x, y = scales
    parts: list[Markup] = []
    slot_bytes = one["pool_bytes"] / one["pool_slots"]
    edges, levels = columns(one)
    below = [0.0] * (len(edges) - 1)
    for name in STACK:
        if name not in levels or name == "free":
            continue
        above = [low + more for low, more in zip(below, levels[name], strict=True)]
        if any(levels[name]):
            parts.append(band(edges, below, above, (x, y), name))
        below = above
    parts += slot_grid(b, (x, y), binary_ticks(y.top, 3), slot_bytes, width)
    pool = [(x(0), y(one["pool_slots"])), (x(edges[-1]), y(one["pool_slots"]))]
    parts.append(path(pool, class_="trace reserved"))
    return parts


def columns(one: Result) -> tuple[list[float], Mapping[str, list[float]]]:
    """Edges in seconds and levels between them, reduced to visible pieces."""
    series = one["series"]
    ends = [0.0, *series["ends_s"]]
    cuts = _cuts(len(ends), _MAX_COLUMNS)
    levels = {
        name: [_mean(ends, values, a, z) for a, z in pairwise(cuts)]
        for name, values in series["levels"].items()
    }
    return [ends[cut] for cut in cuts], levels


def _cuts(count: int, most: int) -> list[int]:
    """Indices of at most about ``most`` pieces of a series with ``count`` edges."""
    each = -(-(count - 1) // most) or 1
    return [*range(0, count - 1, each), count - 1]


def _mean(ends: Sequence[float], values: Sequence[float], a: int, z: int) -> float:
    whole = ends[z] - ends[a]
    return sum(values[i] * (ends[i + 1] - ends[i]) for i in range(a, z)) / whole if whole else 0.0


def moments_of(result: Result) -> list[int]:
    """Indices of the series for the tables."""
    return evenly(len(result["series"]["ends_s"]), _MAX_MOMENTS)


def parts_of(result: Result) -> dict[str, float]:
    """Shares of the pool; reservations are divided into used later and never used."""
    shares = {name: use["mean_percent"] / 100 for name, use in result["states"].items()}
    if policy_of(result) in POLICIES and result["unwritten"]:
        del shares["unwritten"]
        shares |= {n: use["mean_percent"] / 100 for n, use in result["unwritten"].items()}
    return {name: shares[name] for name in PARTS if shares.get(name)}


def means_chart(b: Bilingual, results: Sequence[Result], width: Width) -> Markup:
    """A bar per policy: means over time, divided as in Fig. 2 of the PagedAttention paper."""
    left = 8 if width.narrow else 110
    scale = Scale(1, left, width.pixels - 12)
    most = max((each["pool_slots"] for each in results), default=0)
    parts: list[Markup] = []
    step = 52 if width.narrow else 40
    y = 6.0
    for each in results:
        if width.narrow:
            parts.append(text(b, left, y + 12, policy_of(each), class_="t strong"))
        else:
            parts.append(text(b, left - 10, y + 17, policy_of(each), class_="t strong end"))
        parts += _bar(b, each, y + (18 if width.narrow else 0), scale, most)
        y += step
    for tick in (0, 0.25, 0.5, 0.75, 1):
        parts.append(line(scale(tick), y, scale(tick), y + 4, class_="axis"))
        shown = f"{tick * 100:.0f}\u00a0%"
        anchor = "end" if tick == 1 else "start" if width.narrow and not tick else "middle"
        parts.append(text(b, scale(tick), y + 18, shown, class_=f"t small num tick {anchor}"))
    parts.append(line(scale.start, y, scale.end, y, class_="axis"))
    return drawing(
        b, f"means-{width.name}", (width.pixels, y + 26), message("sim.page.means.title"),
        message("sim.chart.means.desc"), parts, table="states-data", class_=f"chart {width.name}",
    )  # fmt: skip


def _bar(b: Bilingual, result: Result, y: float, scale: Scale, pool: int) -> list[Markup]:
    """Shares of a pool of ``pool`` slots; that of slabs is smaller, it has whole ones alone."""
    parts: list[Markup] = []
    start = 0.0
    for name, own in parts_of(result).items():
        share = own * result["pool_slots"] / pool
        x, span = scale(start), scale(start + share) - scale(start)
        parts.append(rect(x, y, span, 26, fill=fill(name), class_="edge"))
        if span > 44:
            shown = written(share, "share")
            parts.append(text(b, x + span / 2, y + 17.5, shown, class_="t small halo middle num"))
        start += share
    return parts


_KINDS = {"running": "running", "waiting": "waiting", "preempted": "preemptions"}


def preempted(results: Sequence[Result]) -> bool:
    """Whether any policy preempted a request."""
    return any(any(each["series"]["preempted"]) for each in results)


_ROW = 58


def load_chart(b: Bilingual, results: Sequence[Result], width: Width) -> Markup:
    """Running and waiting requests and preemptions over time, with a row per policy."""
    span = max(each["span_s"] for each in results) or 1
    parts: list[Markup] = []
    left, gap = (8, 40) if width.narrow else (110, 62)
    kinds = [kind for kind in _KINDS if kind != "preempted" or preempted(results)]
    across = 1 if width.narrow else len(kinds)
    room = (width.pixels - left - gap * across) / across
    bottom = 0.0
    for index, kind in enumerate(kinds):
        x0 = left + (0 if width.narrow else index * (room + gap)) + gap - 8
        y = bottom + 14 if width.narrow else 14.0
        x = Scale(span, x0, x0 + room)
        parts.append(text(b, x0, y, message(f"metric.{_KINDS[kind]}"), class_="t strong"))
        top = max((value for each in results for value in _levels(each, kind)[1]), default=0) or 1
        for each in results:
            parts += _row(b, each, kind, (x, Scale(top, y + 22 + _ROW, y + 22)), width, index)
            y += _ROW + 28
        parts += x_axis(b, x, y + 2, _SECONDS, 3)
        bottom = y + 54
    return drawing(
        b, f"load-{width.name}", (width.pixels, bottom), message("sim.page.load.title"),
        message("sim.chart.load.desc"), parts, table="load-data", class_=f"chart {width.name}",
    )  # fmt: skip


def _levels(result: Result, kind: str) -> tuple[list[float], list[float]]:
    """Edges in seconds, and requests between them; preemptions in intervals of equal length."""
    if kind != "preempted":
        edges, levels = columns(result)
        return edges, list(levels[kind])
    ends, counts = [0.0, *result["series"]["ends_s"]], result["series"]["preempted"]
    cuts = _cuts(len(ends), 60)
    return [ends[cut] for cut in cuts], [float(sum(counts[a:z])) for a, z in pairwise(cuts)]


def _row(
    b: Bilingual,
    one: Result,
    kind: str,
    scales: tuple[Scale, Scale],
    width: Width,
    column: int,
) -> list[Markup]:
    x, y = scales
    parts = [line(x.start, y(0), x.end, y(0), class_="axis")]
    if width.narrow:
        parts.append(text(b, x.start, y.end - 4, policy_of(one), class_="t small"))
    elif column == 0:
        parts.append(text(b, 0, y(0) - 22, policy_of(one), class_="t strong"))
    # Three ticks: with two, there may be none between 0 and the top.
    tick = decimal_ticks(y.top, 3)[-1]
    parts += grid(b, x, y, [(tick, f"{tick:,g}")], 6)
    edges, values = _levels(one, kind)
    return [*parts, band(edges, [0.0] * len(values), values, scales, _PAINT[kind])]


_PAINT = {"running": "live", "waiting": "wasted", "preempted": "finished"}
