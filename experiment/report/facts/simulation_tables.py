"""Simulations as CSV tables: names of columns end with their unit; empty cells are unknown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from experiment.report.facts.csv_text import csv_text
from experiment.report.facts.simulation import seed_of
from experiment.report.facts.simulation_cells import cells_of
from experiment.report.facts.simulation_figures import FIGURES
from experiment.report.facts.simulation_sweeps import sweeps_of

Data = Mapping[str, Any]


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
