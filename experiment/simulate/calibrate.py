"""The time of a step, fitted to a recorded run, and how far that is off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from experiment.record.log import EVENTS_FILE
from experiment.simulate.latency_file import latency_to_json
from experiment.simulate.names import check_given, gpu_of, model_of
from experiment.simulate.recorded import is_run, requests_file, step_records
from experiment.simulate.setup import Memory
from experiment.text.errors import user_error
from experiment.workload.kvsim_errors import said
from kvsim.files import file_sha256
from kvsim.latency.calibrate import Calibration, calibrate_linear, calibrate_roofline
from kvsim.latency.request_times import calibrate_requests, read_request_records
from kvsim.latency.roofline import LinearLatency, Roofline


def calibrate(
    source: Path,
    *,
    arm: str | None = None,
    folds: int = 5,
    model: str | None = None,
    gpu: str | None = None,
    gpus: int | None = None,
    dtype: str | None = None,
) -> dict[str, Any]:
    """Fit the seconds of a step; what ``calibrate --out`` writes.

    Args:
        source: the directory of a run, or a file of requests with their times.
        arm: of a run; None: ``paged``, or the first.
        folds: parts of the records, each held out once.
        model, gpu, gpus, dtype: with them a run is fitted by a roofline, else by a sum of costs.

    Raises:
        UserError: there is no record to fit to, too little of it, or a name is unknown.
    """
    given = {"--model": model, "--gpu": gpu, "--gpus": gpus, "--dtype": dtype}
    used = [flag for flag, value in (given | {"--arm": arm}).items() if value is not None]
    if not is_run(source):
        return _of_requests(source, folds, used)
    named = None
    if any(value is not None for value in given.values()):
        check_given({"--model": model, "--gpu": gpu})
        named = (str(model), str(gpu))
    return _of_run(source, arm, folds, Memory(gpus=gpus or 1, dtype=dtype), named)


def _of_run(
    path: Path, arm: str | None, folds: int, memory: Memory, named: tuple[str, str] | None
) -> dict[str, Any]:
    """Steps of our own log; with a model and a GPU a roofline, else a sum of costs."""
    arm, records = step_records(path, arm)
    if len(records) < folds:
        raise _too_few(path, len(records), folds)
    fitted: Calibration[Roofline] | Calibration[LinearLatency]
    if named is not None:
        model = model_of(named[0])
        memory.geometry(model)
        ideal = memory.roofline(model, gpu_of(named[1]))
        assert isinstance(ideal, Roofline)
        fitted = calibrate_roofline(records, ideal, folds)
    else:
        fitted = calibrate_linear(records, folds)
    return {
        "kind": "latency",
        "source": path.name,
        "sha256": file_sha256(path / EVENTS_FILE),
        "arm": arm,
        "steps": len(records),
        "folds": folds,
        "latency": latency_to_json(fitted.latency),
        "errors": {"steps": _errors(fitted)},
    }


def _of_requests(path: Path, folds: int, unused: Sequence[str]) -> dict[str, Any]:
    """Requests with their times: a step's costs from what went on beside each."""
    path = requests_file(path)
    if unused:
        raise user_error("error.sim.run_only", flags=", ".join(unused), path=str(path))
    with said():
        records, rejected = read_request_records(path)
    several = sum(record.output_tokens > 1 for record in records)
    if several < folds:
        raise _too_few(path, several, folds)
    fitted = calibrate_requests(records, folds)
    forward = {"decode": fitted.decode_forward, "prefill": fitted.prefill_forward}
    return {
        "kind": "latency",
        "source": path.name,
        "sha256": file_sha256(path),
        "requests": fitted.requests,
        "single_token": fitted.single_token,
        "rejected": [asdict(each) for each in rejected],
        "folds": folds,
        "latency": latency_to_json(fitted.decode.latency),
        "prefill": asdict(fitted.prefill.costs),
        "errors": {
            name: _errors(part) | {"forward": _plain(forward[name])}
            for name, part in (("decode", fitted.decode), ("prefill", fitted.prefill))
        },
    }


def _errors(fitted: Any) -> dict[str, Any]:
    return {name: asdict(getattr(fitted, name)) for name in ("fit", "held_out", "constant")}


def _plain(error: Any) -> dict[str, Any] | None:
    return None if error is None else asdict(error)


def _too_few(path: Path, count: int, folds: int) -> Exception:
    return user_error("error.sim.few_records", path=str(path), count=count, folds=folds)
