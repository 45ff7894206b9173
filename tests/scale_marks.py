"""Whether the marks of a chart's axes stand where their numbers say.

The marks carry no key, as they are no figures of a run. What can be wrong with them can be seen
in the chart itself: of one axis, the places must be as far apart as the numbers.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from chart_checks import charts_of
from data_keys import name

_WRITTEN = re.compile(r"(-?[\d,]+(?:\.\d+)?(?:e[-+]?\d+)?)\s*(%|m?s|[KMGT]?i?B)?")
_UNITS = {"ms": 1e-3, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
# Written sizes are rounded to a tenth or a hundredth of their unit.
_PIXELS = 2.0


@dataclass(frozen=True)
class Mark:
    """A number and its place in the drawing."""

    value: float
    x: float
    y: float


def axes_of(body: Any) -> Iterator[tuple[str, list[float], list[float]]]:
    """(chart, numbers, places) of every axis with three marks or more."""
    for chart in charts_of(body):
        marks = [_mark(node) for node in chart.iter() if _is_mark(node)]
        rows, columns = _grouped(marks)
        for same, place in ((rows, "x"), (columns, "y")):
            for axis in (one for group in same for one in _rising(group)):
                if len(axis) > 2:
                    places = [getattr(mark, place) for mark in axis]
                    yield chart.get("id"), [mark.value for mark in axis], places


def misplaced(body: Any) -> list[tuple[str, float]]:
    """Marks that do not stand between the first and the last of their axis as their numbers do."""
    wrong = []
    for chart, numbers, places in axes_of(body):
        each = (places[-1] - places[0]) / (numbers[-1] - numbers[0])
        for number, place in zip(numbers, places, strict=True):
            if abs(places[0] + (number - numbers[0]) * each - place) > _PIXELS:
                wrong.append((chart, number))
    return wrong


def _is_mark(node: Any) -> bool:
    return name(node) == "text" and "tick" in (node.get("class") or "").split()


def _mark(node: Any) -> Mark:
    written = _WRITTEN.fullmatch("".join(node.itertext()).replace("\u00a0", " "))
    assert written, "".join(node.itertext())
    value = float(written[1].replace(",", "")) * _UNITS.get(written[2], 1)
    return Mark(value, float(node.get("x")), float(node.get("y")))


def _grouped(marks: list[Mark]) -> tuple[list[list[Mark]], list[list[Mark]]]:
    """Those side by side, those one above the other; each in the larger of its two groups."""
    rows: dict[float, list[Mark]] = defaultdict(list)
    columns: dict[float, list[Mark]] = defaultdict(list)
    for mark in marks:
        rows[mark.y].append(mark)
        columns[mark.x].append(mark)
    across = [[m for m in row if len(row) >= len(columns[m.x])] for row in rows.values()]
    down = [[m for m in column if len(column) > len(rows[m.y])] for column in columns.values()]
    return across, down


def _rising(group: list[Mark]) -> Iterator[list[Mark]]:
    """A panel begins anew where the numbers do."""
    found: list[Mark] = group[:1]
    for last, mark in pairwise(group):
        if mark.value <= last.value:
            yield found
            found = []
        found.append(mark)
    yield found
