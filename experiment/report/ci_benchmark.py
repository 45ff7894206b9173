"""The small JSON that benchmark actions of CI services read, one file for each direction.

[{ "name": id of the figure, "unit", "value", "range": "± half of the spread", "extra" }]

Figures without a better direction are in neither file; an alert on them would mean nothing. The
form is that of github-action-benchmark's customSmallerIsBetter and customBiggerIsBetter.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from experiment.compare.results import Better, Figure

FILES: dict[Better, str] = {
    "less": "benchmark-smaller-is-better.json",
    "more": "benchmark-bigger-is-better.json",
}


def benchmark_json(figures: Iterable[Figure], better: Better) -> str:
    """The known figures of one direction; the text is the same for the same figures."""
    chosen = [_entry(f) for f in figures if f.better == better and f.value is not None]
    return json.dumps(chosen, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _entry(figure: Figure) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": figure.id, "unit": figure.unit, "value": figure.value}
    if figure.span is not None:
        low, high = figure.span
        entry["range"] = f"± {(high - low) / 2:.6g}"
    repeats = f", repeats={len(figure.values)}" if figure.values else ""
    entry["extra"] = f"kind={figure.kind}{repeats}"
    return entry
