"""Summary of a grid: one row of plain values per cell."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from kvsim.sim.config import CONTIGUOUS
from kvsim.sweep.grid import AXES


def cells_summary(results: Iterable[bytes]) -> list[dict[str, Any]]:
    """Return one row for each cell file; None is unknown or not applicable.

    ``error`` is the error code of a failed cell; ``error_params`` are its parameters, the only
    entry that is not a plain value.
    """
    return [_row(json.loads(each)) for each in results]


def _row(data: Mapping[str, Any]) -> dict[str, Any]:
    settings = data["cell"]["settings"]
    row: dict[str, Any] = {"id": data["id"]} | {name: settings.get(name) for name in AXES}
    result, error = data.get("result"), data.get("error")
    # A file's hash is known without a result; a synthetic trace's is computed with it.
    row["trace_sha256"] = result["trace"]["sha256"] if result else data["cell"]["trace_sha256"]
    row["error"] = error and error["code"]
    row["error_params"] = error and error["params"]
    for name, path in MEASURES.items():
        value: Any = result
        for part in path:
            value = value.get(part) if isinstance(value, Mapping) else None
        row[name] = value
    if row["policy"] in CONTIGUOUS:
        row |= dict.fromkeys(_PREEMPTION_COLUMNS)
    return row


# Columns of a summary and their paths in a result.
MEASURES: Mapping[str, tuple[str, ...]] = {
    "pool_slots": ("pool_slots",),
    "arrived": ("requests", "arrived"),
    "finished": ("requests", "finished"),
    "span_s": ("span_s",),
    "live_percent": ("states", "live", "mean_percent"),
    "cached_percent": ("states", "cached", "mean_percent"),
    "unwritten_percent": ("states", "unwritten", "mean_percent"),
    "rounding_percent": ("states", "rounding", "mean_percent"),
    "hole_percent": ("states", "hole", "mean_percent"),
    "running_mean": ("running", "mean"),
    "running_busy_mean": ("running", "busy_mean"),
    "running_max": ("running", "max"),
    "waiting_mean": ("waiting", "mean"),
    "waiting_max": ("waiting", "max"),
    "preemptions": ("preemptions", "total"),
    "recomputed_tokens": ("tokens", "recomputed"),
    "swapped_bytes": ("preemptions", "swapped_bytes"),
    "sharing_saved": ("sharing", "share"),
    "prefix_share_of_first": ("prefix", "share_of_first"),
    "queue_wait_p50_s": ("queue_wait_s", "p50"),
    "first_token_p50_s": ("first_token_s", "p50"),
    "first_token_p99_s": ("first_token_s", "p99"),
    "latency_p50_s": ("latency_s", "p50"),
    "latency_p99_s": ("latency_s", "p99"),
    "requests_per_s": ("requests_per_s",),
    "output_tokens_per_s": ("output_tokens_per_s",),
}
# Contiguous policies never preempt.
_PREEMPTION_COLUMNS = ("preemptions", "recomputed_tokens", "swapped_bytes")
