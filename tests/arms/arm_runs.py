"""Runs real arm processes through a real session and reads what was written down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import real_parts
from arms_here import run_here

from experiment.analysis.conclusions import evaluate
from experiment.analysis.results import ArmResult, Results
from experiment.config.schema import Config
from experiment.events import (
    PoolReserved,
    Reading,
    RequestFinished,
    Step,
    WorkloadReady,
    WorkloadRequest,
)
from experiment.machine.environment import Environment
from experiment.record.log import Record
from experiment.replay.arm_events import split_by_arm
from experiment.replay.step_rows import StepRow
from experiment.replay.timeline import timeline
from experiment.workload.prepared import Prepared
from kvsim.core.step import StepPlan

# The four prompts of the worked example come to 2, 13, 110 and 2 tokens.
BLOCK_SIZE = 16


@dataclass(frozen=True)
class Run:
    """A finished run, as a reader sees it."""

    record: Record
    workload: WorkloadReady

    @cached_property
    def results(self) -> Results:
        return evaluate(self.record)

    @property
    def arms(self) -> list[str]:
        return [arm.arm for arm in self.results.arms]

    def arm(self, name: str) -> ArmResult:
        found = self.results.arm(name)
        assert found is not None, [(a.arm, a.status, a.reason) for a in self.results.arms]
        return found

    def rows(self, name: str) -> list[StepRow]:
        events = next(events for events in split_by_arm(self.record) if events.arm == name)
        rows, problem = timeline(events)
        assert problem is None, problem
        return rows

    def plans(self, name: str) -> list[StepPlan]:
        return [s.plan for s in self.record.of(Step) if s.arm == name]

    def pool(self, name: str) -> PoolReserved:
        return next(pool for pool in self.record.of(PoolReserved) if pool.arm == name)

    def tokens(self, name: str) -> dict[int, list[int]]:
        ended = [e for e in self.record.of(RequestFinished) if e.arm == name]
        assert len({e.request for e in ended}) == len(ended)
        return {e.request: e.tokens for e in ended}

    def readings(self, name: str) -> list[Reading]:
        return [r for r in self.record.of(Reading) if r.arm == name]


def run_arms(directory: Path, environment: Environment, config: Config, prepared: Prepared) -> Run:
    """Run every arm of the config on what was prepared."""
    record = real_parts.run_arms(directory, config, environment, prepared, status="complete")
    return Run(record, prepared.workload)


def run_arms_here(directory: Path, config: Config, prepared: Prepared) -> Run:
    """The same without their processes."""
    return Run(run_here(directory, config, prepared), prepared.workload)


def make_config(model: str, arms: Sequence[str], **workload: object) -> Config:
    """A config on the CPU with one thread."""
    return Config.model_validate(
        {
            "model": {"name": model},
            "workload": workload,
            "cache": {"block_size": BLOCK_SIZE},
            "run": {"arms": list(arms), "device": "cpu", "threads": 1},
        }
    )


def with_requests(
    prepared: Prepared,
    requests: Sequence[tuple[int, int]],
    slabs: float,
    max_length: int,
    block_size: int,
) -> Prepared:
    """The same model with requests of (prompt tokens, new tokens) in a budget of some slabs."""
    made = [
        WorkloadRequest(
            id=index,
            prompt=f"number {index}",
            token_ids=[(7919 * (index + 1) + 104729 * i) % 50000 for i in range(prompt)],
            max_new_tokens=new,
        )
        for index, (prompt, new) in enumerate(requests)
    ]
    workload = WorkloadReady(
        requests=made,
        max_length=max_length,
        block_size=block_size,
        budget_bytes=int(slabs * max_length * prepared.model.slot_bytes),
    )
    return Prepared(prepared.directory, prepared.model, workload)
