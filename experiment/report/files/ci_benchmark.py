"""JSON for benchmark actions of CI services, one file per direction.

[{ "name": id of the figure, "unit", "value", "range": "± half of the spread", "extra" }]

The format is that of github-action-benchmark's customSmallerIsBetter and customBiggerIsBetter:
names are unique, and units are printed next to a value. Allocated and reserved memory has no better
direction in a comparison, because more concurrent requests need more. It is included as "smaller",
for alerts on growth. Other figures without a direction are in neither file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from experiment.analysis.experiment_results import Better, Unit
from experiment.compare.results import Figure

FILES: dict[Better, str] = {
    "less": "benchmark-smaller-is-better.json",
    "more": "benchmark-bigger-is-better.json",
}
_GROWS = frozenset((
    "reserved_bytes", "allocated_bytes", "allocated_slots", "pool_bytes", "allocated_mean",
    "held_slots", "unshared_slots", "table_entries",
))  # fmt: skip
_UNITS: dict[Unit, str] = {
    "count": "count", "mean": "mean count", "share": "share of 1", "bytes": "bytes", "seconds": "s",
}  # fmt: skip
_PER_SECOND = "_per_s"  # suffix of all rates


def benchmark_json(figures: Iterable[Figure], better: Better) -> str:
    """JSON of the known figures of one direction; deterministic."""
    chosen = [_entry(f) for f in figures if _side(f) == better and f.value is not None]
    return json.dumps(chosen, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _side(figure: Figure) -> Better | None:
    return "less" if figure.metric in _GROWS else figure.better


def _unit(figure: Figure) -> str:
    if figure.unit == "rate":
        return f"{figure.metric.removesuffix(_PER_SECOND)}/s"
    return _UNITS[figure.unit]


def _entry(figure: Figure) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": figure.id, "unit": _unit(figure), "value": figure.value}
    if figure.span is not None:
        low, high = figure.span
        entry["range"] = f"± {(high - low) / 2:.6g}"
    repeats = f", repeats={len(figure.values)}" if figure.values else ""
    entry["extra"] = f"kind={figure.kind}{repeats}"
    return entry
