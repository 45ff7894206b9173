"""What preempted requests find in the prefix cache, read off the plans, is what kvsim counted."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from experiment.replay.timeline import Resumptions
from kvsim.accounting.ledger import Ledger, PoolShape
from kvsim.core.blocks import BlockPool, Key
from kvsim.core.request import Request
from kvsim.core.scheduler import Scheduler, SchedulerConfig

SIZE = 2


def keys(number: int, shared: int) -> Callable[[int], Sequence[Key]]:
    return lambda count: [("all", i) if i < shared else (number, i) for i in range(count)]


def found_late(seed: int) -> tuple[int, int]:
    """Of one run by the plans and by the scheduler, which nobody leaves before it has ended."""
    draw = random.Random(seed)
    config = SchedulerConfig(
        prefix_caching=True,
        max_num_batched_tokens=6,
        policy="priority",
        admission="first_chunk" if seed % 2 else "full",
    )
    scheduler = Scheduler(BlockPool(12, SIZE), config)
    ledger, returns, total, asked = Ledger(PoolShape(12, SIZE, 1)), Resumptions(), 0, 0
    while asked < 12 or scheduler.has_work:
        if asked < 12 and draw.random() < 0.6:
            shared = draw.choice((0, 4, 6))
            prompt, new = draw.randint(8, 14), draw.randint(1, 8)
            request = Request(asked, prompt, new, keys=keys(asked, shared))
            request.priority = draw.randint(0, 3)
            scheduler.add(request)
            asked += 1
        plan = scheduler.schedule()
        returns.lose(plan, ledger.owners)
        ledger.apply(plan)
        total += returns.found_late(plan)
        if plan.chunks:
            scheduler.complete(plan)
    return total, scheduler.found_late


def test_by_the_plans_as_much_is_found_late_as_the_scheduler_counted() -> None:
    runs = [found_late(seed) for seed in range(60)]
    assert [by_plans for by_plans, _ in runs] == [counted for _, counted in runs]
    assert sum(counted > 0 for _, counted in runs) > 3
