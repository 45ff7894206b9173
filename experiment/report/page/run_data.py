"""Data of a run embedded in its page, for the script and for downloading, of limited size.

    schema_version … config  results          as in run.json
    model  workload                           as in the log
    tables                                    the CSV files, packed; see embed.py
    left_out                                  paths that are cut or omitted; see the files

The config of an experiment is that of the cell shown. Token ids of prompts are always omitted. If
the page is too large, tokens and texts of requests are omitted first, then memory readings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from experiment.analysis.resolved_config import resolved_config
from experiment.analysis.results import Results
from experiment.events import ModelPrepared, WorkloadReady
from experiment.record.log import Record
from experiment.report.facts.experiment_table import experiment_frame
from experiment.report.facts.series import Series
from experiment.report.facts.tables import readings_frame, summary_frame, timeline_csv, to_csv
from experiment.report.facts.values import shortened
from experiment.report.html.embed import packed, safe_json

MAX_BYTES = 500_000
_MAX_TEXT = 2000


def run_data(
    record: Record, results: Results, series: list[Series], room: int = MAX_BYTES
) -> dict[str, Any]:
    """Data that fit into ``room`` bytes; ``left_out`` lists the rest."""
    workload, model = record.first(WorkloadReady), record.first(ModelPrepared)
    tables = {
        "summary.csv": packed(to_csv(summary_frame(results))),
        **_experiment_table(results),
        "readings.csv": packed(to_csv(readings_frame(record, results))),
        "timeline.csv": packed(timeline_csv(record, series)),
    }
    asked, cut = _asked(record)
    data: dict[str, Any] = {
        **asked,
        "model": model.model_dump(mode="json") if model else None,
        "workload": _short_workload(workload),
        "results": results.model_dump(mode="json"),
        "tables": tables,
        "left_out": [*cut, *_short_parts(workload)],
    }
    for names, drop in _DROPPED.items():
        if len(safe_json(data).encode()) <= room:
            break
        drop(data)
        data["left_out"] += names
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


def _without(field: str) -> Callable[[dict[str, Any]], None]:
    def drop(data: dict[str, Any]) -> None:
        for arm in data["results"]["arms"]:
            del arm[field]

    return drop


def _without_tokens(data: dict[str, Any]) -> None:
    for arm in data["results"]["arms"]:
        for request in arm["requests"]:
            del request["tokens"], request["text"]


def _without_readings(data: dict[str, Any]) -> None:
    data["tables"].pop("readings.csv", None)


def _without_timeline(data: dict[str, Any]) -> None:
    data["tables"].pop("timeline.csv", None)


def _without_prompts(data: dict[str, Any]) -> None:
    if data["workload"]:
        del data["workload"]["requests"]


_DROPPED: dict[tuple[str, ...], Callable[[dict[str, Any]], None]] = {
    ("results.arms.*.requests.*.tokens", "results.arms.*.requests.*.text"): _without_tokens,
    ("results.arms.*.memory",): _without("memory"),
    ("readings.csv",): _without_readings,
    ("timeline.csv",): _without_timeline,
    ("workload.requests",): _without_prompts,
    ("results.arms.*.requests",): _without("requests"),
}


def _experiment_table(results: Results) -> dict[str, str]:
    if results.experiment is None:
        return {}
    return {"experiment.csv": packed(to_csv(experiment_frame(results.experiment)))}


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
