"""The time of a step, fitted to a recorded run, and how far that is off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from experiment.events import Step, WorkloadReady
from experiment.files.bounded_reading import evaluating
from experiment.record.log import EVENTS_FILE, read_record
from experiment.simulate.latency_file import latency_to_json
from experiment.simulate.names import check_given, gpu_of, model_of
from experiment.simulate.setup import Memory
from experiment.text.errors import user_error
from experiment.workload.kvsim_errors import translate_errors
from kvsim.files import file_sha256
from kvsim.latency.calibrate import Calibration, StepRecord, calibrate_linear, calibrate_roofline
from kvsim.latency.request_times import calibrate_requests, read_request_records
from kvsim.latency.roofline import LinearLatency, Roofline, StepWork


def is_run(path: Path) -> bool:
    """Whether it is the directory of one of our runs."""
    return (path / EVENTS_FILE).exists()


def requests_file(path: Path) -> Path:
    """The JSONL file of a recorded run's requests.

    Raises:
        UserError: there is none.
    """
    if not path.exists():
        raise user_error("error.file_missing", path=str(path))
    file = path / "requests.jsonl" if path.is_dir() else path
    if not file.is_file():
        raise user_error("error.sim.no_run", path=str(path))
    return file


def step_records(directory: Path, arm: str | None) -> tuple[str, list[StepRecord]]:
    """Steps of one arm that computed something: what, and how long it took.

    A token is decoded when it lies behind its request's prompt and is computed alone; what is
    computed again after a preemption counts as a prompt.

    Raises:
        UserError: no such arm, or none recorded steps with their times.
    """
    record = read_record(directory)
    workload = record.first(WorkloadReady)
    prompts = {r.id: len(r.token_ids) for r in workload.requests} if workload else {}
    steps: dict[str, list[StepRecord]] = {}
    with evaluating(directory):
        for event in record.of(Step):
            _add(steps, event, prompts)
    if not steps:
        raise user_error("error.sim.no_steps", path=str(directory))
    name = arm or ("paged" if "paged" in steps else next(iter(steps)))
    if name not in steps:
        choices = ", ".join(steps)
        raise user_error("error.sim.no_arm", path=str(directory), arm=name, choices=choices)
    return name, steps[name]


def _add(steps: dict[str, list[StepRecord]], event: Step, prompts: Mapping[int, int]) -> None:
    work = StepWork.of(
        (c.start, c.count, c.count == 1 and c.start >= prompts.get(c.request, 0))
        for c in event.plan.chunks
    )
    seconds = (event.t_ns - event.started_ns) / 1e9
    if work.tokens and seconds > 0:
        steps.setdefault(event.arm, []).append(StepRecord(work, seconds))


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
        memory.caches(model)
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
    with translate_errors():
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
