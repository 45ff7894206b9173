"""Runs arms as their processes would, real ones, within this process: starting one takes seconds.

What they send is the same: it is gathered here in the order in which the runner writes it. What the
runner reads from outside, the memory of a process above all, is missing.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from experiment.arms import base
from experiment.arms.base import ArmRun
from experiment.arms.functions import FUNCTIONS
from experiment.arms.launch import plan_launch
from experiment.arms.task import ArmTask
from experiment.children.prepare import main as prepare
from experiment.config.schema import Config
from experiment.events import (
    TRANSIENT,
    ArmSkipped,
    ArmStarted,
    Event,
    ModelDirectory,
    ModelPrepared,
    RunFinished,
    RunStarted,
    StageEntered,
    WorkloadReady,
)
from experiment.machine.thread_record import thread_facts, usable_cores
from experiment.model.load import optional_tokenizer
from experiment.record.log import EventLog, Record, read_record
from experiment.text.messages import Message
from experiment.workload.prepared import Prepared

KEPT_TOKENIZER = cache(optional_tokenizer)  # of a directory that is never written again


@dataclass
class Gathered:
    """Stands in for the pipe to the runner."""

    events: list[Event] = field(default_factory=list)

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def mark(self, event: StageEntered) -> None:
        self.emit(event)


def started(config: Config) -> RunStarted:
    data = config.model_dump(mode="json")
    return RunStarted(version="test", wall_ns=0, utc_offset_s=0, lang="en", command=[], config=data)


def prepare_here(config: Config, **task: object) -> Prepared:
    """Model and requests as the preparing process makes them; ``task`` is added to what it gets."""
    wire = Gathered()
    told = {"config": config.model_dump(mode="json"), "device": "cpu", "arms": config.arm_names}
    prepare(wire, told | task)  # type: ignore[arg-type]
    found: dict[type, Any] = {type(event): event for event in wire.events}
    return Prepared(found[ModelDirectory].path, found[ModelPrepared], found[WorkloadReady])


def events_of(arm: str, config: Config, prepared: Prepared) -> list[Event]:
    """What an arm on the CPU sends."""
    # It collects garbage for its readings of memory: without all that other tests have loaded.
    gc.collect()
    gc.freeze()
    torch.set_num_threads(1)
    torch.manual_seed(config.run.seed)
    wire = Gathered()
    task = ArmTask(
        arm=arm, config=config, device="cpu", directory=prepared.directory, model=prepared.model,
        workload=prepared.workload,
    )  # fmt: skip
    one = ArmRun(wire, task, import_s=0.0)  # type: ignore[arg-type]
    one.emit(ArmStarted(arm=arm, pid=0, variables=thread_facts(), cores=usable_cores()))
    with patch.object(base, "optional_tokenizer", KEPT_TOKENIZER):
        FUNCTIONS[arm](one)
    return wire.events


def write_arm(log: EventLog, arm: str, config: Config, prepared: Prepared) -> None:
    """Run an arm and write what it sends, or why it does not run."""
    launch = plan_launch(arm, config, "cpu", prepared, Path())
    if isinstance(launch, Message):
        log.write(ArmSkipped(arm=arm, reason=launch))
        return
    for event in events_of(arm, config, prepared):
        if not isinstance(event, TRANSIENT):
            log.write(event)


def run_here(directory: Path, config: Config, prepared: Prepared) -> Record:
    """Every arm of the config, on what was prepared."""
    directory.mkdir(exist_ok=True)
    with EventLog(directory) as log:
        for event in (started(config), prepared.model, prepared.workload):
            log.write(event)
        for arm in config.arm_names:
            write_arm(log, arm, config, prepared)
        log.write(RunFinished(status="complete"))
    return read_record(directory)
