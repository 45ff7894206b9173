"""Data of a run embedded in its page, for the script and for downloading, of limited size.

    schema_version … config  results          as in run.json
    model  workload                           as in the log
    tables                                    the CSV files, packed; see embed.py
    left_out                                  paths that are cut or omitted; see the files

The config of an experiment is that of the cell shown. Token ids of prompts are always omitted. If
the page is too large, tokens and texts of requests are omitted first, then memory readings.
"""

from __future__ import annotations

from typing import Any

from experiment.analysis.resolved_config import resolved_config
from experiment.analysis.results import Results
from experiment.events import ModelPrepared, WorkloadReady
from experiment.record.log import Record
from experiment.report.facts.series import Series
from experiment.report.facts.tables import (
    experiment_csv,
    readings_csv,
    summary_csv,
    timeline_csv,
)
from experiment.report.facts.values import shortened
from experiment.report.html.embed import packed, safe_json

MAX_BYTES = 500_000
_MAX_TEXT = 2000


def run_data(
    record: Record, results: Results, series: list[Series], room: int = MAX_BYTES
) -> dict[str, Any]:
    """Data that fit into ``room`` bytes; ``left_out`` lists the rest."""
    workload, model = record.first(WorkloadReady), record.first(ModelPrepared)
    tables = {"summary.csv": summary_csv(results)}
    if results.experiment is not None:
        tables["experiment.csv"] = experiment_csv(results.experiment)
    tables["readings.csv"] = readings_csv(record, results)
    tables["timeline.csv"] = timeline_csv(record, series)
    asked, cut = _asked(record)
    data: dict[str, Any] = {
        **asked,
        "model": model.model_dump(mode="json") if model else None,
        "workload": _short_workload(workload),
        "results": results.model_dump(mode="json"),
        "tables": {name: packed(table) for name, table in tables.items()},
        "left_out": [*cut, *_short_parts(workload)],
    }
    for paths in _DROPPED:
        if len(safe_json(data).encode()) <= room:
            break
        for path in paths:
            _drop(data, path)
        data["left_out"] += paths
    return data


def _asked(record: Record) -> tuple[dict[str, Any], list[str]]:
    """Version, command and config as in run.json, and the paths of shortened values."""
    started = record.started
    whole = {"command": list(started.command), "config": resolved_config(record)}
    short = {name: shortened(value) for name, value in whole.items()}
    about = {
        "schema_version": started.schema_version,
        "version": started.version,
        "wall_ns": started.wall_ns,
        "utc_offset_s": started.utc_offset_s,
    }
    return about | short, [name for name in whole if short[name] != whole[name]]


_DROPPED = (
    ("results.arms.*.requests.*.tokens", "results.arms.*.requests.*.text"),
    ("results.arms.*.memory",),
    ("readings.csv",),
    ("timeline.csv",),
    ("workload.requests",),
    ("results.arms.*.requests",),
)


def _drop(data: dict[str, Any], path: str) -> None:
    """Remove a table, or the values at a path; ``*`` are all entries of a list."""
    if path in data["tables"]:
        del data["tables"][path]
        return
    *names, last = path.split(".")
    found: list[Any] = [data]
    for name in names:
        found = [each for one in found if one for each in (one if name == "*" else [one[name]])]
    for one in filter(None, found):
        one.pop(last, None)


def _short_workload(workload: WorkloadReady | None) -> dict[str, Any] | None:
    """The requests without token ids, with long prompts cut."""
    if workload is None:
        return None
    data = workload.model_dump(mode="json", exclude={"requests"})
    data["requests"] = [
        {
            "id": request.id,
            "prompt": request.prompt[:_MAX_TEXT],
            "prompt_characters": len(request.prompt),
            "prompt_tokens": len(request.token_ids),
            "max_new_tokens": request.max_new_tokens,
            "sample_of": request.sample_of,
        }
        for request in workload.requests
    ]
    return data


def _short_parts(workload: WorkloadReady | None) -> list[str]:
    """Paths of omitted or shortened parts of the requests."""
    if workload is None:
        return []
    long = any(len(request.prompt) > _MAX_TEXT for request in workload.requests)
    return ["workload.requests.*.token_ids", *(["workload.requests.*.prompt"] if long else [])]
