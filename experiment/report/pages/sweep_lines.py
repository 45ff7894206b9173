"""Compute the lines of a sweep's charts over one axis from all cells.

    cells differ in      block_size 8 16 32 · policy max paged · trace a b · seed 0 1 2
    ─► across            block_size: the numeric axis with most values
    ─► by                policy: a line for each, up to a maximum number of lines
    ─► over              trace, seed: a point is their median, with minimum and maximum

A policy without the setting of the axis has the same value at all points.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

# Number of distinguishable lines, see lines.py.
_MAX_LINES = 7
# Maximum marks without overlap.
_MAX_POINTS = 40
# Seeds are repeats of the same settings.
_REPEATS = "seed"
# Columns of the cells.
DRAWN = {
    "live": "live_percent",
    "running": "running_busy_mean",
    "latency": "latency_p50_s",
    "rate": "requests_per_s",
}


def sweep_lines(rows: Sequence[Row], varied: Sequence[str]) -> dict[str, Any] | None:
    """Lines for ``summary.json``; None if no axis has two values.

    Returns names of axes (``across``, ``by``, ``over``), ``points`` of the axis, whether they are
    ``numbers``, and ``lines``. A line has its ``settings`` and, for each of :data:`DRAWN`, an entry
    per point: None, or ``median``, ``low`` and ``high`` of its ``cells``.
    """
    axes = [name for name in varied if name != _REPEATS] or list(varied)
    across = _across(rows, axes)
    if across is None:
        return None
    points = _values(rows, across)
    numbers = _are_numbers(points)
    points = sorted(points) if numbers else points
    by = _by(rows, [name for name in axes if name != across])
    made = [_line(rows, across, points, by, settings) for settings in _combined(rows, by)]
    return {
        "across": across,
        "by": by,
        "over": [name for name in varied if name not in (across, *by)],
        "points": points,
        "numbers": numbers,
        "lines": [line for line in made if any(any(each) for each in line["values"].values())],
    }


def _across(rows: Sequence[Row], axes: Sequence[str]) -> str | None:
    """The axis of the charts: numbers before names, then most values, then the first."""
    counts = {name: _values(rows, name) for name in axes}
    candidates = [name for name in axes if 1 < len(counts[name]) <= _MAX_POINTS]
    best = max(((_are_numbers(counts[n]), len(counts[n])) for n in candidates), default=None)
    return next((n for n in candidates if (_are_numbers(counts[n]), len(counts[n])) == best), None)


def _by(rows: Sequence[Row], axes: Sequence[str]) -> list[str]:
    """Axes with few enough combinations; the policy is dropped last."""
    kept = sorted(axes, key=lambda name: name != "policy")
    while len(_combined(rows, kept)) > _MAX_LINES:
        kept.pop()
    return [name for name in axes if name in kept]


def _combined(rows: Sequence[Row], axes: Sequence[str]) -> list[tuple[Any, ...]]:
    """Existing combinations in the order of the grid; one without axes."""
    return list(dict.fromkeys(tuple(row[name] for name in axes) for row in rows))


def _line(
    rows: Sequence[Row],
    across: str,
    points: Sequence[Any],
    by: Sequence[str],
    settings: Sequence[Any],
) -> dict[str, Any]:
    mine = [row for row in rows if all(row[n] == v for n, v in zip(by, settings, strict=True))]
    at = [[row for row in mine if row[across] in (point, None)] for point in points]
    return {
        "settings": dict(zip(by, settings, strict=True)),
        "values": {
            name: [_spread(row[column] for row in some) for some in at]
            for name, column in DRAWN.items()
        },
    }


def _spread(values: Iterable[float | None]) -> dict[str, float] | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    return {
        "median": statistics.median(known),
        "low": min(known),
        "high": max(known),
        "cells": len(known),
    }


def _values(rows: Sequence[Row], name: str) -> list[Any]:
    """Distinct values in the order of the grid."""
    return list(dict.fromkeys(row[name] for row in rows if row[name] is not None))


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) for value in values)
