"""Columns of a simulation: policies with results, and reasons for missing figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiment.analysis.experiment_results import Unit
from experiment.report.facts.csv_text import csv_text
from experiment.report.facts.simulation import seed_of
from experiment.report.facts.simulation_figures import (
    FIGURES,
    GROUPS,
    Result,
    SimulationFigure,
    Value,
    waste_share,
)
from experiment.report.facts.texts import Cells, KeyedText, said
from experiment.report.facts.values import written
from experiment.text import Translator
from experiment.text.messages import Message, message
from kvsim.sim.config import CONTIGUOUS


def summary_csv(data: Data) -> str:
    """One row per policy."""
    heads = ["policy", "error", *(figure.name for figure in FIGURES), "unknown_because"]
    rows = []
    for cell in cells_of(data):
        values = [cell.value(figure) for figure in FIGURES]
        reasons = [
            f"{figure.name}={cell.reason(figure).key}"
            for figure, value in zip(FIGURES, values, strict=True)
            if value is None
        ]
        error = cell.error.key if cell.error else None
        rows.append([cell.policy, error, *values, "; ".join(reasons)])
    return _csv(data, heads, rows)


def timeline_csv(data: Data) -> str:
    """One row per policy and interval: mean slots in each state, running and waiting requests."""
    results = [cell.result for cell in cells_of(data) if cell.result is not None]
    names = list(dict.fromkeys(name for each in results for name in each["series"]["levels"]))
    columns = [name if name in ("running", "waiting") else f"{name}_slots" for name in names]
    rows = []
    for result in results:
        series = result["series"]
        begin = 0.0
        for index, end in enumerate(series["ends_s"]):
            levels = [
                series["levels"][name][index] if name in series["levels"] else None
                for name in names
            ]
            preempted = series["preempted"][index]
            rows.append([result["config"]["policy"], begin, end, *levels, preempted])
            begin = end
    return _csv(data, ["policy", "begin_s", "end_s", *columns, "preemptions"], rows)


def sweeps_csv(data: Data) -> str:
    """One row per point of every sweep; empty without sweeps."""
    rows = [
        [sweep.name, line, x, value]
        for sweep in sweeps_of(data)
        for line, values in sweep.lines.items()
        for x, value in zip(sweep.axis, values, strict=True)
    ]
    return _csv(data, ["sweep", "line", "at", "value"], rows) if rows else ""


def tables_of(data: Data) -> dict[str, str]:
    """All tables by file name."""
    tables = {"summary.csv": summary_csv(data), "timeline.csv": timeline_csv(data)}
    sweeps = sweeps_csv(data)
    return tables | ({"sweeps.csv": sweeps} if sweeps else {})


def _csv(data: Data, heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Text of a table; each row names its inputs, so that tables can be joined."""
    source = (data["trace"]["name"], data["trace"]["sha256"], seed_of(data))
    heads = [*heads, "trace", "trace_sha256", "seed"]
    return csv_text(heads, ((*row, *source) for row in rows))


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


_LEAST_FACTOR = 1.05  # a smaller one is no headline
# Figures printed without ``--details``, and in the open table of a page.
BRIEF = (
    "running_mean", "waste_of_allocated_share", "preemptions", "hits_first_share",
    "first_token_p50_s", "per_output_token_p50_s", "throughput_tokens_per_s",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PolicyCell:
    """A policy's column: its result, or an error."""

    policy: str
    result: Result | None
    error: Message | None

    def value(self, figure: SimulationFigure) -> Value:
        """Value of a figure; None if missing."""
        return None if self.result is None else figure.value(self.result)

    def reason(self, figure: SimulationFigure) -> Message:
        """Reason why a figure is missing."""
        if self.result is None:
            return self.error or message("sim.reason.nothing_ran")
        return message(f"sim.reason.{figure.reason(self.result)}")


def cells_of(data: Mapping[str, Any]) -> list[PolicyCell]:
    """Columns of a record."""
    return [
        PolicyCell(
            cell["policy"],
            cell["result"],
            Message.model_validate(cell["error"]) if cell["error"] else None,
        )
        for cell in data["cells"]
    ]


def visible_figures(
    figures: tuple[SimulationFigure, ...], cells: list[PolicyCell]
) -> list[SimulationFigure]:
    """Figures that some policy has; states only if some slot was in them."""
    return [
        figure
        for figure in figures
        if any(
            value is not None and (value or figure.state is None)
            for value in (cell.value(figure) for cell in cells)
        )
    ]


@dataclass(frozen=True, slots=True)
class Dash:
    """Figures that some policies lack, for one reason."""

    policies: tuple[str, ...]
    figures: tuple[SimulationFigure, ...]
    reason: Message


def dashes(figures: tuple[SimulationFigure, ...], cells: list[PolicyCell]) -> list[Dash]:
    """Reasons for missing figures, without states that no slot was in."""
    shown = visible_figures(figures, cells)
    asked = [figure for figure in figures if figure in shown or figure.state is None]
    groups: dict[tuple[str, tuple[SimulationFigure, ...]], tuple[Message, list[str]]] = {}
    for cell in cells:
        without: dict[str, tuple[Message, list[SimulationFigure]]] = {}
        for figure in asked:
            if cell.value(figure) is None:
                why = cell.reason(figure)
                without.setdefault(why.key, (why, []))[1].append(figure)
        for key, (why, found) in without.items():
            groups.setdefault((key, tuple(found)), (why, []))[1].append(cell.policy)
    return [Dash(tuple(policies), found, why) for (_, found), (why, policies) in groups.items()]


def figure_cells(
    t: Translator, group: str, figures: tuple[SimulationFigure, ...], cells: list[PolicyCell]
) -> Cells:
    """A row per figure, a column per policy; notes explain the group and its dashes."""
    shown = visible_figures(figures, cells)
    rows = [
        [t.message(figure.about.label), *(_text(cell, figure) for cell in cells)]
        for figure in shown
    ]
    about = f"sim.group.{group}_about"
    notes = [t(about)] if t.has(about) else []
    for dash in dashes(figures, cells):
        names = t("console.listed").join(t.message(each.about.label) for each in dash.figures)
        names = t("sim.all_figures") if len(dash.figures) >= len(shown) else names
        policies, reason = ", ".join(dash.policies), t.message(dash.reason)
        notes.append(t("sim.dash", policy=policies, names=names, reason=reason))
    heads = ["", *(cell.policy for cell in cells)]
    return Cells(t(f"sim.group.{group}"), heads, rows, notes=notes, name=group)


def brief_cells(t: Translator, cells: list[PolicyCell]) -> Cells:
    """A row per policy, with its most important figures."""
    every = {figure.name: figure for group in GROUPS.values() for figure in group}
    shown = visible_figures(tuple(every[name] for name in BRIEF), cells)
    heads = [t("sim.page.policy"), *(t.message(figure.about.label) for figure in shown)]
    rows = [[cell.policy, *(_text(cell, figure) for figure in shown)] for cell in cells]
    return Cells(t("sim.group.brief"), heads, rows, name="brief")


def _text(cell: PolicyCell, figure: SimulationFigure) -> str:
    value = cell.value(figure)
    text = written(value, figure.about.unit)
    if value is None or figure.key is None:
        return text
    return KeyedText(text, f"cells[{cell.policy}].result.{figure.key}")


def headline(data: Mapping[str, Any]) -> Message:
    """Compare the first paged policy with the contiguous baseline (slabs), as far as they ran."""
    ran = [cell for cell in cells_of(data) if cell.result is not None]
    paged = [cell for cell in ran if cell.policy not in CONTIGUOUS]
    others = [cell for cell in ran if cell.policy in CONTIGUOUS]
    others.sort(key=lambda cell: (cell.policy != "slabs", cell.policy != "max"))
    params: dict[str, Any] = {}
    for prefix, cell in zip(("", "other_"), [*paged[:1], *others[:1]], strict=False):
        assert cell.result is not None
        wasted = waste_share(cell.result)
        params[f"{prefix}policy"] = cell.policy
        params[f"{prefix}share"] = None if wasted is None else 1 - wasted
        params[f"{prefix}running"] = cell.result["running"]["mean"]
    if "other_policy" not in params:
        return message(f"sim.headline.{'one' if params else 'none'}", **params)
    running, other = params["running"], params["other_running"]
    if running and other and running >= _LEAST_FACTOR * other:
        return message("sim.headline.more", factor=running / other, **params)
    return message("sim.headline.two", **params)
