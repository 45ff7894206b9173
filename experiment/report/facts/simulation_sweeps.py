"""Sweeps of a simulation as tables with a row per point, for console, page and charts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from experiment.analysis.experiment_results import Unit
from experiment.report.facts.page_text import Cells, said
from experiment.report.facts.simulation_figures import Result, Value, waste_share
from experiment.report.facts.values import written
from experiment.text import Translator
from experiment.text.messages import Message, message

Data = Mapping[str, Any]
EVICTIONS = ("optimal", "lru", "fifo")
PREEMPTIONS = ("recompute", "swap")


# Sweeps whose lines are no policies, and the keys of the lines' names.
_NAMED = {"prefixes": "sim.eviction", "preemption": "sim.preemption"}


@dataclass(frozen=True, slots=True)
class Sweep:
    """One value per line and point of an axis.

    Attributes:
        name: ``block_sizes``, ``preemption``, ``budgets``, ``samples`` or ``prefixes``; its texts
            are under ``sim.sweep.<name>``.
        axis: ascending points, in ``axis_unit``.
        lines: values per point by name of the line (a policy, an order of eviction or a kind of
            preemption); None: unknown.
        mark: point of the axis with the run's own setting.
        errors: (line, point, reason) without a result.
    """

    name: str
    axis: tuple[int, ...]
    axis_unit: Unit
    unit: Unit
    lines: Mapping[str, tuple[Value, ...]]
    mark: int | None = None
    errors: tuple[tuple[str, int, Message], ...] = ()

    @property
    def chart(self) -> str:
        """Name of the chart and its table."""
        return f"sweep-{self.name.replace('_', '-')}"

    def label(self, line: str) -> str | Message:
        """Label of a line: a policy's name, or a message."""
        words = _NAMED.get(self.name)
        return line if words is None else message(f"{words}.{line}")


def sweeps_of(data: Data) -> list[Sweep]:
    """Sweeps of a run."""
    candidates = [
        _sweep(data, "block_sizes", "block_size", waste_share, ("count", "share")),
        _preemption(data),
        _sweep(data, "budgets", "budget_bytes", _running, ("bytes", "mean")),
        _sweep(data, "samples", "samples", _saved, ("count", "share")),
        _prefixes(data),
    ]
    return [sweep for sweep in candidates if sweep is not None]


def sweep_cells(t: Translator, sweep: Sweep) -> Cells:
    """A row per point, a column per line; the run's own point has a mark."""
    texts, points = f"sim.sweep.{sweep.name}", [written(x, sweep.axis_unit) for x in sweep.axis]
    rows = [
        [
            point + (" *" if x == sweep.mark else ""),
            *(written(values[n], sweep.unit) for values in sweep.lines.values()),
        ]
        for n, (x, point) in enumerate(zip(sweep.axis, points, strict=True))
    ]
    notes = [t(f"{texts}.about"), *([t("sim.sweep.own")] if sweep.mark is not None else [])]
    notes += [
        t("console.problem", arm=f"{line}, {written(x, sweep.axis_unit)}", text=t.message(error))
        for line, x, error in sweep.errors
    ]
    heads = [t(f"{texts}.axis"), *(said(t, sweep.label(line)) for line in sweep.lines)]
    return Cells(t(f"{texts}.title"), heads, rows, notes=notes, name=sweep.chart)


def _running(result: Result) -> Value:
    value = result["running"]["mean"]
    return None if value is None else float(value)


def _saved(result: Result) -> Value:
    sharing = result["sharing"]
    return sharing["share"] if sharing else None


def _sweep(
    data: Data, name: str, key: str, value: Callable[[Result], Value], units: tuple[Unit, Unit]
) -> Sweep | None:
    points = data[name]
    if not points:
        return None
    axis = tuple(sorted({point[key] for point in points}))
    at = {(point["policy"], point[key]): point for point in points}
    lines = {}
    errors = []
    for policy in dict.fromkeys(point["policy"] for point in points):
        results = [at.get((policy, x), {}).get("result") for x in axis]
        lines[policy] = tuple(value(result) if result else None for result in results)
        for x in axis:
            error = at.get((policy, x), {}).get("error")
            if error:
                errors.append((policy, x, Message.model_validate(error)))
    own = {"block_sizes": data["setup"]["block_size"], "budgets": data["setup"]["budget"]["kv"]}
    mark = own.get(name)
    return Sweep(name, axis, *units, lines, mark if mark in axis else None, tuple(errors))


def _preemption(data: Data) -> Sweep | None:
    """Mean preemption cost of recomputing and swapping, by block size; None without preemptions."""
    points = {point["block_size"]: point for point in data.get("preemption", ())}
    axis = tuple(sorted(points))
    lines: dict[str, tuple[Value, ...]] = {
        kind: tuple(points[size].get(f"{kind}_s") for size in axis) for kind in PREEMPTIONS
    }
    if not any(value is not None for values in lines.values() for value in values):
        return None
    errors = tuple(
        (point["policy"], size, Message.model_validate(point["error"]))
        for size, point in sorted(points.items())
        if point["error"]
    )
    mark = data["setup"]["block_size"]
    marked = mark if mark in axis else None
    return Sweep("preemption", axis, "count", "seconds", lines, marked, errors)


def _prefixes(data: Data) -> Sweep | None:
    prefixes = data["prefixes"]
    if not prefixes:
        return None
    points = prefixes["points"]
    axis = tuple(sorted({point["capacity"] for point in points}))
    at = {(point["eviction"], point["capacity"]): point for point in points}
    lines: dict[str, tuple[Value, ...]] = {
        name: tuple(at[name, x]["hit_share_blocks"] for x in axis) for name in EVICTIONS
    }
    lines = {"bound": tuple(at["optimal", x]["bound_share_blocks"] for x in axis)} | lines
    if lines["bound"] == lines["optimal"]:
        del lines["bound"]
    mark = prefixes["pool_blocks"]
    return Sweep("prefixes", axis, "count", "share", lines, mark if mark in axis else None)
