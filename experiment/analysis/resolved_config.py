"""Resolve every ``auto`` in the config of a run from its log.

The result is a valid config that gives the same run.
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
    """The run's config with every ``auto`` replaced by its resolved value.

    A setting is kept if the run resolved it to none or several values, as the cells of an
    experiment may. ``cache.kv_dtype`` is kept too: ``auto`` there means the model's precision.
    """
    config = json.loads(json.dumps(record.started.config))
    for section, values in _resolved_values(record).items():
        known = {name: value for name, value in values.items() if value is not None}
        config[section] = config.get(section, {}) | known
    if "arms" in config["run"]:
        config["run"]["arms"] = list(expand_arms(config["run"]["arms"]))
    return dict(config)


def _resolved_values(record: Record) -> dict[str, dict[str, Any]]:
    """Resolved values by section and key; None if the log has none or several."""
    models, workloads = record.of(ModelPrepared), record.of(WorkloadReady)
    graphs = record.of(DecodeGraphsReady)
    prompts = None
    if workloads and record.first(CellStarted) is None:
        prompts = [samples[0].prompt for samples in workloads[0].samples()]
    return {
        "model": {"dtype": _unique(model.dtype for model in models)},
        "workload": {"prompts": prompts},
        "cache": {
            "budget": _unique(workload.budget_bytes for workload in workloads),
            "block_size": _unique(workload.block_size for workload in workloads),
        },
        "engine": {
            "kernel": _unique(chosen.kernel for chosen in record.of(KernelChosen)),
            "cuda_graphs": _unique(_graphs(ready) for ready in graphs),
        },
        "run": {
            "device": _unique(model.device for model in models),
            "threads": _unique(finished.threads for finished in record.of(ArmFinished)),
        },
    }


def _graphs(ready: DecodeGraphsReady) -> str:
    if not ready.sizes:
        return "off"
    return "compiled" if ready.asked == "compiled" else "on"


def _unique(values: Iterable[T]) -> T | None:
    """The common value; None if there is none or more than one."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None
