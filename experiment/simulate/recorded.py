"""Recorded runs → what kvsim can be calibrated by: steps of our own log, requests of others."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from experiment.events import Step, WorkloadReady
from experiment.files.bounded_reading import evaluating
from experiment.record.log import EVENTS_FILE, read_record
from experiment.text.errors import user_error
from kvsim.latency.calibrate import StepRecord
from kvsim.latency.roofline import StepWork


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
