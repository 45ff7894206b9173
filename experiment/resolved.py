"""The config of a run with every ``auto`` replaced by what it came to."""

from __future__ import annotations

import json
from typing import Any

from experiment.config import expand_arms
from experiment.events import ArmFinished, CellStarted, ModelPrepared, WorkloadReady
from experiment.record import Record


def resolved_config(record: Record) -> dict[str, Any]:
    """The run's config with every ``auto`` replaced by what it came to."""
    config = json.loads(json.dumps(record.started.config))
    for section in ("model", "workload", "cache", "run"):
        config.setdefault(section, {})
    model, workload = record.first(ModelPrepared), record.first(WorkloadReady)
    if model is not None:
        config["model"]["dtype"] = model.dtype
        config["run"]["device"] = model.device
    if workload is not None:
        config["cache"]["budget"] = workload.budget_bytes
        config["cache"]["block_size"] = workload.block_size
        if record.first(CellStarted) is None:
            prompts = [samples[0].prompt for samples in workload.samples()]
            config["workload"]["prompts"] = prompts
    finished = record.first(ArmFinished)
    if finished is not None:
        config["run"]["threads"] = finished.threads
    if "arms" in config["run"]:
        config["run"]["arms"] = list(expand_arms(config["run"]["arms"]))
    return dict(config)
