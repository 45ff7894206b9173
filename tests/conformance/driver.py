"""Drives a scheduler with real tokens, so that the prefix cache has something to recognise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvsim.core.blocks import BlockPool
from kvsim.core.prefix import KeyChain
from kvsim.core.scheduler import Request, Scheduler, SchedulerConfig
from kvsim.core.step import OpKind, StepPlan


class Driver:
    """A scheduler and the tokens of its requests; a generated token is ``1000 + its position``."""

    def __init__(self, blocks: int, block_size: int, **config: Any) -> None:
        self.pool = BlockPool(blocks, block_size)
        config = {"prefix_caching": True, **config}
        self.scheduler = Scheduler(self.pool, SchedulerConfig(**config))
        self.tokens: dict[int, list[int]] = {}

    def add(self, request: int, prompt: Sequence[int], new: int = 1, priority: int = 0) -> None:
        """Queue a request."""
        tokens = self.tokens[request] = list(prompt)
        chain = KeyChain(self.pool.block_size)
        self.scheduler.add(
            Request(request, len(tokens), new, lambda n: chain.keys(tokens, n), priority)
        )

    def step(self) -> StepPlan:
        """Plan and complete one step."""
        plan = self.scheduler.schedule()
        for chunk in plan.chunks:
            if chunk.samples:
                tokens = self.tokens[chunk.request]
                tokens.append(1000 + len(tokens))
        self.scheduler.complete(plan)
        self.pool.check_integrity()
        return plan

    def run(self) -> list[StepPlan]:
        """Step until nothing is left to do."""
        plans = []
        while self.scheduler.has_work:
            assert len(plans) < 5000, "no progress"
            plans.append(self.step())
        return plans

    def found(self, tokens: Sequence[int], count: int) -> list[int]:
        """Blocks in which the first ``count`` full blocks of ``tokens`` are found."""
        return self.pool.lookup(KeyChain(self.pool.block_size).keys(tokens, count))


def ops(plan: StepPlan, kind: OpKind) -> list[tuple[int | None, tuple[int, ...]]]:
    """Operations of a kind as (request, blocks)."""
    return [(op.request, op.blocks) for op in plan.ops if op.kind is kind]
