"""The config of a run with every ``auto`` replaced by what the log says that it came to.

It is a config again: asked for as it stands, it is the same run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, TypeVar

from experiment.config.schema import expand_arms
from experiment.events import (
    ArmFinished,
    CellStarted,
    DecodeGraphsReady,
    KernelChosen,
    ModelPrepared,
    WorkloadReady,
)
from experiment.record.log import Record

T = TypeVar("T")


def resolved_config(record: Record) -> dict[str, Any]:
    """The run's config with every ``auto`` replaced by what it came to.

    What was asked for stays where nothing in the run decided it (a kernel without an arm of the
    engine), and where it came to different things, in the cells of an experiment for instance.
    ``cache.kv_dtype`` stays too: it names another precision than the model's or none.
    """
    config = json.loads(json.dumps(record.started.config))
    for section, found in _came_to(record).items():
        known = {name: value for name, value in found.items() if value is not None}
        config[section] = config.get(section, {}) | known
    if "arms" in config["run"]:
        config["run"]["arms"] = list(expand_arms(config["run"]["arms"]))
    return dict(config)


def _came_to(record: Record) -> dict[str, dict[str, Any]]:
    """By section and key what the log says of it; None where it says nothing, or several things."""
    models, workloads = record.of(ModelPrepared), record.of(WorkloadReady)
    graphs = record.of(DecodeGraphsReady)
    prompts = None
    if workloads and record.first(CellStarted) is None:
        prompts = [samples[0].prompt for samples in workloads[0].samples()]
    return {
        "model": {"dtype": _agreed(model.dtype for model in models)},
        "workload": {"prompts": prompts},
        "cache": {
            "budget": _agreed(workload.budget_bytes for workload in workloads),
            "block_size": _agreed(workload.block_size for workload in workloads),
        },
        "engine": {
            "kernel": _agreed(chosen.kernel for chosen in record.of(KernelChosen)),
            "cuda_graphs": _agreed(_graphs(ready) for ready in graphs),
        },
        "run": {
            "device": _agreed(model.device for model in models),
            "threads": _agreed(finished.threads for finished in record.of(ArmFinished)),
        },
    }


def _graphs(ready: DecodeGraphsReady) -> str:
    if not ready.sizes:
        return "off"
    return "compiled" if ready.asked == "compiled" else "on"


def _agreed(values: Iterable[T]) -> T | None:
    """The value that all of them are; None where there is none, or more than one."""
    found = set(values)
    return found.pop() if len(found) == 1 else None
