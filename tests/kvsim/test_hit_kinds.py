"""Hits after a preemption are told apart: own blocks found again, and those of others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from kvsim.core.blocks import BlockPool, Key
from kvsim.core.request import Request
from kvsim.core.scheduler import Scheduler, SchedulerConfig

SIZE = 2


def keys(name: str, shared: int = 0) -> Callable[[int], Sequence[Key]]:
    """The first ``shared`` blocks are those of everybody."""
    return lambda count: [("all", i) if i < shared else (name, i) for i in range(count)]


def run(shared: int) -> tuple[Scheduler, list[int]]:
    """Two requests of 4 + 6 tokens in 7 blocks: the newer one loses its blocks on the way."""
    config = SchedulerConfig(prefix_caching=True, max_num_batched_tokens=16)
    scheduler = Scheduler(BlockPool(7, SIZE), config)
    scheduler.add(Request(0, 4, 6, keys=keys("a", shared)))
    scheduler.complete(scheduler.schedule())
    scheduler.add(Request(1, 4, 6, keys=keys("b", shared)))
    preempted: list[int] = []
    for _ in range(40):
        if not scheduler.has_work:
            return scheduler, preempted
        plan = scheduler.schedule()
        preempted += plan.preempted
        scheduler.pool.check_integrity()
        scheduler.complete(plan)
    raise AssertionError("no end")


@pytest.mark.parametrize("shared", [0, 1])
def test_hits_after_a_preemption_are_split_by_whose_blocks_they_are(shared: int) -> None:
    scheduler, preempted = run(shared)
    stats = scheduler.stats
    assert preempted == [1]
    assert stats.queried == 8  # both prompts, once
    assert stats.hit_cross == shared * SIZE
    assert stats.requeried > 4  # its prompt and what it had generated
    assert stats.hit_again == shared * SIZE  # the other's block, found again
    assert stats.hit_own > 0
    assert stats.hit_own + stats.hit_again < stats.requeried
