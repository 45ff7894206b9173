"""Drives a scheduler as an engine would, and makes random workloads for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hypothesis import strategies as st

from kvsim.core.blocks import BlockPool, blocks_needed
from kvsim.core.request import final_tokens
from kvsim.core.scheduler import Request, Scheduler, SchedulerConfig
from kvsim.core.step import FinishReason, OpKind, StepPlan

# Prompt and new tokens of requests that 63 blocks of 32 are too few for.
CROWD = [
    (700, 60), (650, 80), (600, 100), (720, 40), (500, 120), (680, 60), (640, 90), (710, 30),
    (560, 110), (690, 70),
]  # fmt: skip


@dataclass(frozen=True)
class Workload:
    """Requests as (prompt tokens, new tokens), a pool and the limits of a step.

    ``stops`` says after how many tokens a request meets a stop token; ``aborts`` at which step
    a request is aborted.
    """

    requests: tuple[tuple[int, int], ...]
    blocks: int
    block_size: int
    config: SchedulerConfig
    stops: Mapping[int, int] = field(default_factory=dict)
    aborts: Mapping[int, int] = field(default_factory=dict)

    @property
    def final_tokens(self) -> int:
        """Positions that all requests together compute if none is computed twice."""
        return sum(final_tokens(prompt, new) for prompt, new in self.requests)

    def scheduler(self) -> Scheduler:
        """A scheduler with every request queued."""
        scheduler = Scheduler(BlockPool(self.blocks, self.block_size), self.config)
        for request, (prompt, new) in enumerate(self.requests):
            scheduler.add(Request(request, prompt, new))
        return scheduler

    def run(self, check: Callable[[Scheduler, StepPlan], None]) -> list[StepPlan]:
        """Run to the end; ``check`` sees each plan before it is completed."""
        scheduler = self.scheduler()
        generated = dict.fromkeys(range(len(self.requests)), 0)
        plans: list[StepPlan] = []
        # Each step computes at least a token of the oldest request, which is never preempted.
        limit = self.final_tokens + len(self.aborts) + 1
        while scheduler.has_work:
            assert len(plans) < limit, "no progress"
            for request, step in self.aborts.items():
                if step == len(plans):
                    scheduler.abort(request)
            plan = scheduler.schedule()
            plans.append(plan)
            check(scheduler, plan)
            for chunk in plan.chunks:
                generated[chunk.request] += chunk.samples
            scheduler.complete(plan, [r for r, n in self.stops.items() if generated[r] >= n])
        return plans


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


def ends(plans: list[StepPlan]) -> dict[int, FinishReason]:
    """How each request ended; no request ends twice."""
    finished = [finish for plan in plans for finish in plan.finished]
    assert len({finish.request for finish in finished}) == len(finished)
    return {finish.request: finish.reason for finish in finished}


@st.composite
def workloads(draw: st.DrawFn, aborting: bool = True) -> Workload:
    """Workloads that the pool accepts; many pools are too small for all requests at once."""
    requests = draw(
        st.lists(st.tuples(st.integers(1, 20), st.integers(1, 12)), min_size=1, max_size=7)
    )
    size = draw(st.integers(1, 8))
    largest = max(blocks_needed(final_tokens(*request), size) for request in requests)
    names = st.integers(0, len(requests) - 1)
    return Workload(
        requests=tuple(requests),
        blocks=largest + draw(st.integers(0, 2 * largest)),
        block_size=size,
        config=SchedulerConfig(
            max_num_seqs=draw(st.integers(1, 6)),
            max_num_batched_tokens=draw(st.integers(1, 40)),
            watermark_blocks=draw(st.integers(0, 3)),
        ),
        stops=draw(st.dictionaries(names, st.integers(1, 8), max_size=3)),
        aborts=draw(st.dictionaries(names, st.integers(0, 20), max_size=2)) if aborting else {},
    )
