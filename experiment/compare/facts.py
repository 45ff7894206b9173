"""Convert a run directory to one side of a comparison: figures, and what they depend on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiment.analysis.resolved_config import resolved_config
from experiment.analysis.results import Results
from experiment.compare.figures import figures_of, place_of
from experiment.compare.results import Side
from experiment.compare.sides import check_config
from experiment.events import EnvironmentProbed, Event, ModelPrepared, WorkloadReady
from experiment.experiments.evaluate import picture
from experiment.experiments.measured import cells_of
from experiment.files.bounded_reading import evaluating, file_name
from experiment.record.log import EVENTS_FILE, Record, read_record
from experiment.record.simulation import SIM_FILE
from experiment.text.errors import user_error


def read_side(directory: Path, *, own: bool = False) -> Side:
    """Evaluate a run directory, complete or not.

    Args:
        own: this process wrote the run.

    Raises:
        UserError: no run, a simulation, another schema version, or a contradictory record.
    """
    if not directory.exists():
        raise user_error("error.compare.no_such", path=str(directory))
    if (directory / SIM_FILE).exists() and not (directory / EVENTS_FILE).exists():
        raise user_error("error.compare.simulation", path=str(directory))
    record = read_record(directory, own=own)
    with evaluating(directory):
        _, results = picture(record)
        return side_of(record, results)


def side_of(record: Record, results: Results) -> Side:
    """One side, of a record and what was found in it.

    Raises:
        ValueError, TypeError: a comparison cannot use its config.
    """
    started = record.started
    config = flatten(resolved_config(record))
    timed = config.get("workload.clock") == "wall" and bool(config.get("workload.arrivals"))
    probed = record.first(EnvironmentProbed)
    environment = probed.environment if probed else {}
    side = Side(
        name=file_name(record.directory.resolve()),
        kind="run",
        schema_version=started.schema_version,
        version=started.version,
        wall_ns=started.wall_ns,
        utc_offset_s=started.utc_offset_s,
        status=results.status,
        command=started.command,
        busy=_at(environment, "load", "busy"),
        machine=_machine(environment),
        versions={"pagedkv_lab": started.version, **_versions(environment, results)},
        model=_model(record.first(ModelPrepared)),
        models=_models(record),
        config=config,
        requests=request_digests(record),
        figures=figures_of(results, timed=timed),
        damaged_lines=record.damaged_lines - record.cut_lines,
        changed_files=list(record.changed_files),
    )
    check_config(side)
    return side


def request_digests(record: Record) -> dict[str, str]:
    """Digest of requests and sampling parameters by cell, or of the run under ''."""
    workloads = {place: next((e for e in events if isinstance(e, WorkloadReady)), None)
             for place, events in _places(record)}  # fmt: skip
    return {place: _digest(ready) for place, ready in workloads.items() if ready is not None}


def _places(record: Record) -> list[tuple[str, tuple[Event, ...]]]:
    """Events of each cell, or of the run under ''."""
    name = str(record.started.config.get("experiment", {}).get("name"))
    cells = [(place_of(name, cell.started.values), cell.events) for cell in cells_of(record)]
    return cells or [("", record.events)]


def _digest(ready: WorkloadReady) -> str:
    asked = [r.model_dump(mode="json", exclude={"prompt"}) for r in ready.requests]
    data = [asked, ready.sampling.model_dump(mode="json")]
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


def flatten(table: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Flatten nested tables to dotted keys."""
    result: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            result |= flatten(value, f"{before}{key}.")
        else:
            result[before + key] = list(value) if isinstance(value, tuple) else value
    return result


def _machine(environment: Mapping[str, Any]) -> dict[str, str | int | float | None]:
    gpus = environment.get("gpus") or ()
    visible = [gpu for gpu in gpus if isinstance(gpu, Mapping) and gpu.get("visible")]
    machine = {
        "device": environment.get("device_name"),
        "cpu": _at(environment, "cpu", "model"),
        "cores": _at(environment, "cpu", "usable_cores"),
        "ram_bytes": _at(environment, "ram", "total_bytes"),
        "gpu": visible[0].get("name") if visible else None,
        "gpu_bytes": visible[0].get("total_bytes") if visible else None,
        "os": _at(environment, "system", "os"),
        "architecture": _at(environment, "system", "machine"),
    }
    return machine if environment else {}


def _versions(environment: Mapping[str, Any], results: Results) -> dict[str, str | None]:
    engine = next((arm.engine.versions for arm in results.arms if arm.engine), {})
    return {
        "python": _at(environment, "python", "version"),
        "torch": _at(environment, "torch", "version"),
        "transformers": _at(environment, "transformers", "version"),
        "vllm": engine.get("vllm") or _at(environment, "vllm", "version"),
        "driver": _at(environment, "nvml", "driver_version"),
    }


def _models(record: Record) -> dict[str, dict[str, str | int | None]]:
    """Models of the cells whose model is not the first one."""
    models = {place: _model(next((e for e in events if isinstance(e, ModelPrepared)), None))
             for place, events in _places(record)}  # fmt: skip
    first = _model(record.first(ModelPrepared))
    return {place: model for place, model in models.items() if model and model != first}


def _model(model: ModelPrepared | None) -> dict[str, str | int | None]:
    if model is None:
        return {}
    names = ("name", "source", "architecture", "parameters", "dtype", "device", "weights_sha256")
    return {name: getattr(model, name) for name in names}


def _at(table: Mapping[str, Any], *path: str) -> Any:
    """A nested value; None if any part of the path is missing."""
    value: Any = table
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
