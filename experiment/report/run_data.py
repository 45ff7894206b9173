"""The run inside its page: what its script reads and a person downloads, in a bounded size.

    run  model  workload  results             as in run.json
    tables                                    the CSV files, packed; see embed.py
    left_out                                  paths that made it too large, each beside the page

What is largest and least read goes first: tokens and texts of requests, then memory readings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from experiment.events import ModelPrepared, WorkloadReady
from experiment.record import Record
from experiment.report.embed import packed, safe_json
from experiment.report.experiment.frame import experiment_frame
from experiment.report.frames import readings_frame, summary_frame, timeline_frame, to_csv
from experiment.report.series import Series
from experiment.results import Results

MOST_BYTES = 500_000
_MOST_TEXT = 2000


def run_data(
    record: Record, results: Results, series: list[Series], room: int = MOST_BYTES
) -> dict[str, Any]:
    """Everything that fits into ``room`` bytes of the page; ``left_out`` names the rest."""
    workload, model = record.first(WorkloadReady), record.first(ModelPrepared)
    tables = {
        "summary.csv": packed(to_csv(summary_frame(results))),
        **_experiment_table(results),
        "readings.csv": packed(to_csv(readings_frame(record, results))),
        "timeline.csv": packed(to_csv(timeline_frame(series))),
    }
    data: dict[str, Any] = {
        "run": record.started.model_dump(mode="json"),
        "model": model.model_dump(mode="json") if model else None,
        "workload": _short_workload(workload),
        "results": results.model_dump(mode="json"),
        "tables": tables,
        "left_out": [],
    }
    for name, drop in _DROPPED.items():
        if len(safe_json(data).encode()) <= room:
            break
        drop(data)
        data["left_out"].append(name)
    return data


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


_DROPPED: dict[str, Callable[[dict[str, Any]], None]] = {
    "results.arms.*.requests.*.tokens": _without_tokens,
    "results.arms.*.memory": _without("memory"),
    "readings.csv": _without_readings,
    "timeline.csv": _without_timeline,
    "workload.requests": _without_prompts,
    "results.arms.*.requests": _without("requests"),
}


def _experiment_table(results: Results) -> dict[str, str]:
    if results.experiment is None:
        return {}
    return {"experiment.csv": packed(to_csv(experiment_frame(results.experiment)))}


def _short_workload(workload: WorkloadReady | None) -> dict[str, Any] | None:
    """The requests without token ids and with long prompts cut; the log has them whole."""
    if workload is None:
        return None
    data = workload.model_dump(mode="json", exclude={"requests"})
    data["requests"] = [
        {
            "id": request.id,
            "prompt": request.prompt[:_MOST_TEXT],
            "prompt_characters": len(request.prompt),
            "prompt_tokens": len(request.token_ids),
            "max_new_tokens": request.max_new_tokens,
            "sample_of": request.sample_of,
        }
        for request in workload.requests
    ]
    return data
