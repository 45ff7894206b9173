"""A run as CSV tables, with one row per arm, step, memory reading or figure of an experiment.

Names of columns end with their unit. Empty cells are unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any, get_args

from experiment.analysis.experiment_results import CellArm, CellResult, ExperimentResult, FigureInfo
from experiment.analysis.metrics import ARM_METRICS
from experiment.analysis.results import ArmResult, PartName, PeakBytes, Results
from experiment.events import RunStarted
from experiment.record.log import Record
from experiment.replay.step_rows import SlotFigures, StepRow
from experiment.report.facts.csv_text import csv_cell, csv_text
from experiment.report.facts.series import Series
from experiment.text.messages import message

_SLOT_FIELDS = tuple(SlotFigures.model_fields)
_NOT_SLOTS = {
    "step", "t_ns", "started_ns", "tokens", "running", "waiting", "preempted", "witness",
    "written", "never_written",
}  # fmt: skip
_RENAMED = {"witness": "witnessed_slots", "t_ns": "ended_ns"}
# Columns of the timeline, and their fields.
_SLOTS = {f"{name}_slots": name for name in _SLOT_FIELDS}
_CLOCK = {
    _RENAMED.get(name, f"{name}_slots" if name.endswith("written") else name): name
    for name in StepRow.model_fields
    if name in _NOT_SLOTS - {"step"}
}


def summary_csv(results: Results) -> str:
    """One row per arm; whether something holds is 1 or 0."""
    return _csv(
        {
            name: int(value) if isinstance(value, bool) else value
            for name, value in _summary(results, arm).items()
        }
        for arm in results.arms
    )


def timeline_csv(record: Record, arms: Sequence[Series]) -> str:
    """One row per arm and step; slots are integers, and the clock is the last column. Cached."""
    known = record.memo.get("timeline.csv")
    if not isinstance(known, str):
        rows = (
            [
                series.arm,
                row.step,
                *(round(fields[name]) for name in _SLOTS.values()),
                *(fields[name] for name in _CLOCK.values()),
            ]
            for series in arms
            for row in series.rows
            for fields in (vars(row),)
        )
        columns = ["arm", "step", *_SLOTS, *_CLOCK] if arms else []
        known = record.memo["timeline.csv"] = csv_text(columns, rows)
    return known


def readings_csv(record: Record, results: Results) -> str:
    """One row per arm, stage and memory channel."""
    return _csv(
        {
            "arm": arm.arm,
            "stage": row.stage,
            "request": row.request,
            "channel": row.channel,
            "scope": row.scope,
            "value_bytes": row.bytes,
            "total_bytes": row.total_bytes,
            "unknown_because": row.reason.key if row.reason else None,
            "monotonic_ns": row.t_ns,
            "wall_clock": wall_clock(record.started, row.t_ns).isoformat(timespec="milliseconds"),
        }
        for arm in results.arms
        for row in arm.memory
    )


def experiment_csv(result: ExperimentResult) -> str:
    """One row per figure, arm and cell of an experiment; values in the unit of their figure."""
    return _csv(
        _figure(result, cell, arm, info)
        for cell in result.cells
        for arm in cell.arms
        for info in result.figures
    )


def _figure(
    result: ExperimentResult, cell: CellResult, arm: CellArm, info: FigureInfo
) -> dict[str, Any]:
    value = arm.figures.get(info.figure)
    why = value.reason if value else arm.reason
    return {
        "experiment": result.name,
        "size": result.size,
        "cell": cell.index + 1,
        **{f"cell_{name}": one for name, one in cell.values.items()},
        "arm": arm.arm,
        "status": arm.status,
        "figure": info.figure,
        "unit": info.unit,
        "kind": info.kind,
        "value": value.value if value else None,
        "low": value.low if value else None,
        "high": value.high if value else None,
        "repeats": arm.repeats,
        "foretold_by_kvsim": value.foretold if value else None,
        "as_foretold": value.exact if value else None,
        "unknown_because": why.key if why and (value is None or value.value is None) else None,
    }


def wall_clock(started: RunStarted, t_ns: int) -> datetime:
    """Local wall clock of the run at a monotonic time in ns."""
    zone = timezone(timedelta(seconds=started.utc_offset_s))
    micros = (started.wall_ns + t_ns - started.t_ns) // 1000
    return datetime.fromtimestamp(0, zone) + timedelta(microseconds=micros)


def _summary(results: Results, arm: ArmResult) -> dict[str, Any]:
    facts = arm.model_dump(include=set(_FACTS))
    return {
        "arm": arm.arm,
        "status": arm.status,
        "reason": arm.reason.key if arm.reason else None,
        **{
            _COLUMNS.get(metric.name, metric.name): metric.read(results, arm)
            for metric in ARM_METRICS.values()
        },
        "problems": len(arm.problems),
        **{column: facts[name] for name, column in _FACTS.items()},
        **_memory(arm),
    }


def _memory(arm: ArmResult) -> dict[str, Any]:
    """Reconciliation, parts of the process, and utilisation."""
    reconciliation, watch = arm.reconciliation, arm.watch
    parts = {part.part: part.bytes for part in reconciliation.parts} if reconciliation else {}
    return {
        "kv_formula_bytes": reconciliation.expected_bytes if reconciliation else None,
        "kv_channels_agree": reconciliation.agree if reconciliation else None,
        "kv_channels_judged": sum(r.agrees is not None for r in reconciliation.rows)
        if reconciliation
        else None,
        "process_peak_loading_bytes": arm.process_peak_loading,
        "process_peak_channel": arm.process_peak_channel,
        **{f"process_{part}_bytes": parts.get(part) for part in get_args(PartName)},
        **{column: getattr(watch, name) for name, column in _WATCH_FIELDS.items()},
        "unknown_because": _reasons(arm),
    }


def _reasons(arm: ArmResult) -> str | None:
    """``column=key of the reason`` for the empty cells of the row."""
    watch, reconciliation = arm.watch, arm.reconciliation
    known = (
        [(f"process_{p.part}_bytes", p.reason) for p in reconciliation.parts]
        if reconciliation
        else []
    )
    known += [
        ("device_most_above_bytes", watch.device_reason),
        ("gpu_processes_of_others_before", watch.foreign_reason),
        ("gpu_processes_of_others_after", watch.foreign_reason),
        ("cpu_cores_busy", watch.cpu_reason if watch.cpu_cores is None else None),
        ("cpu_cores_of_others", watch.others_reason if watch.others_cores is None else None),
        ("gpu_busy_share", watch.gpu_reason),
        ("gpu_memory_busy_share", watch.gpu_reason),
    ]
    if arm.moved_bytes is None and not arm.elastic:
        known.append(("moved_bytes", message("report.unknown.does_not_grow")))
    return "; ".join(f"{column}={reason.key}" for column, reason in known if reason) or None


_WATCH_FIELDS = {
    "settled": "device_settled_before",
    "device_channel": "device_channel",
    "baseline_bytes": "device_before_bytes",
    "device_delta_bytes": "device_most_above_bytes",
    "foreign_before": "gpu_processes_of_others_before",
    "foreign_after": "gpu_processes_of_others_after",
    "cpu_cores": "cpu_cores_busy",
    "others_cores": "cpu_cores_of_others",
    "usable_cores": "cpu_cores_usable",
    "gpu_share": "gpu_busy_share",
    "gpu_memory_share": "gpu_memory_busy_share",
    "sampler_share": "watching_share_of_usable_cores",
}


# Columns of metrics with another name.
_COLUMNS = {
    **{f"{name}_bytes": f"peak_{name}_bytes" for name in PeakBytes.model_fields},
    **{f"{name}_slots": f"peak_{name}_slots" for name in _SLOT_FIELDS},
    **{f"{name}_slots_mean": f"mean_{name}_slots" for name in PeakBytes.model_fields},
    "live_share": "peak_live_share",
    "live_share_mean": "mean_live_share",
    "fits": "requests_that_fit_in_budget",
    "block_size": "block_slots",
    "kv_bytes": "kv_tensor_bytes",
    "shared_peak": "shared_blocks_peak",
    "process_peak": "process_peak_bytes",
    "equal_tokens": "equal_tokens_share",
    "attention_error": "attention_error_share",
}
# Fields of an arm that are no metrics, and their columns.
_FACTS = {
    "kv_dtype": "kv_dtype",
    "scale_bytes": "block_scale_bytes",
    "reserved_variation": "reserved_variation_share",
    "allocated_variation": "allocated_variation_share",
    "process_variation": "process_variation_share",
    "process_variation_channel": "process_variation_channel",
    "witnessed_steps": "witnessed_steps",
    "threads": "threads",
    "device_name": "device_name",
}


def _csv(rows: Iterable[dict[str, Any]]) -> str:
    """Text of a CSV file with the columns of the first row, without a byte order mark."""
    import pandas as pd  # late: slow to import

    cells = [{name: csv_cell(value) for name, value in row.items()} for row in rows]
    frame = pd.DataFrame(cells, dtype=object)  # integers stay integers beside empty cells
    return frame.to_csv(index=False, lineterminator="\n")
