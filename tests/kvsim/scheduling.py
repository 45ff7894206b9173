"""Drives a scheduler as an engine would, and makes random workloads for it."""

from __future__ import annotations

from kvsim.core.blocks import BlockPool
from kvsim.core.scheduler import Request, Scheduler, SchedulerConfig
from kvsim.core.step import OpKind, StepPlan

# Prompt and new tokens of requests that 63 blocks of 32 are too few for.
CROWD = [
    (700, 60), (650, 80), (600, 100), (720, 40), (500, 120), (680, 60), (640, 90), (710, 30),
    (560, 110), (690, 70),
]  # fmt: skip


def make_scheduler(blocks: int = 100, block_size: int = 4, **limits: int) -> Scheduler:
    """A scheduler with an empty queue."""
    return Scheduler(BlockPool(blocks, block_size), SchedulerConfig(**limits))


def add(scheduler: Scheduler, *requests: tuple[int, int]) -> None:
    """Queue requests 0, 1, ... of (prompt tokens, new tokens)."""
    for request, (prompt, new) in enumerate(requests):
        scheduler.add(Request(request, prompt, new))


def step(scheduler: Scheduler, stopped: tuple[int, ...] = ()) -> StepPlan:
    """One step from plan to completion."""
    plan = scheduler.schedule()
    scheduler.complete(plan, stopped)
    return plan


def chunks(plan: StepPlan) -> list[tuple[int, int, int, bool]]:
    """Chunks as (request, start, count, samples)."""
    return [(c.request, c.start, c.count, c.samples) for c in plan.chunks]


def freed(plan: StepPlan) -> dict[int | None, tuple[int, ...]]:
    """Blocks that each request gives back in this plan."""
    return {op.request: op.blocks for op in plan.ops if op.kind is OpKind.FREE}
