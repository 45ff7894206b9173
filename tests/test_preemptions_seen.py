"""What preemption lost, read off the plans, is what the scheduler says of each."""

from __future__ import annotations

from collections import Counter
from typing import Literal

import pytest

from experiment.analysis.preemption import PreemptionCounts, preemptions_of
from kvsim.core.blocks import BlockPool
from kvsim.core.request import Request
from kvsim.core.scheduler import Scheduler, SchedulerConfig
from kvsim.core.step import StepPlan


def plans_of(preemption: Literal["recompute", "swap"], host_blocks: int) -> list[StepPlan]:
    config = SchedulerConfig(preemption=preemption, host_blocks=host_blocks)
    scheduler, plans = Scheduler(BlockPool(8, 4), config), []
    for number in range(6):
        scheduler.add(Request(number, 5 + number, 12))
    while scheduler.has_work:
        plans.append(scheduler.schedule())
        scheduler.complete(plans[-1])
    return plans


@pytest.mark.parametrize(("preemption", "host_blocks"), [("recompute", 0), ("swap", 64)])
def test_swapped_tokens_are_not_lost(
    preemption: Literal["recompute", "swap"], host_blocks: int
) -> None:
    plans = plans_of(preemption, host_blocks)
    preempted = Counter(request for plan in plans for request in plan.preempted)
    assert preempted.total() > 2
    computed = sum(plan.tokens for plan in plans)
    held = sum(cause.computed for plan in plans for cause in plan.causes)
    lost = held if preemption == "recompute" else 0
    assert preemptions_of(plans) == PreemptionCounts(
        preempted.total(), len(preempted), lost, computed
    )
