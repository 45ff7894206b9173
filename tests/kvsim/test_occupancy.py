"""Blocks in use, recorded beside simulated; remedies of preemption, simulated."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scheduling import CROWD

from kvsim.accounting.ledger import Ledger
from kvsim.accounting.slots import PoolShape
from kvsim.core.blocks import BlockPool
from kvsim.core.limits import SchedulerConfig
from kvsim.core.request import Request
from kvsim.core.scheduler import Scheduler
from kvsim.core.step import StepPlan
from kvsim.planning.remedies import Outcome, Remedy, Trial, find_remedies
from kvsim.sim.occupancy import Occupancy, occupancy, schedule_all
from kvsim.sim.replay import RecordedRequest

SHAPE = PoolShape(8, 4, 1)
REQUESTS = [RecordedRequest(n, 5 + n, 9, arrival_step=2 * n) for n in range(4)]
CONFIG = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=8)


def record(config: SchedulerConfig, blocks: int) -> list[StepPlan]:
    scheduler = Scheduler(BlockPool(blocks, SHAPE.block_size), config)
    plans: list[StepPlan] = []
    while len(plans) < 7 or scheduler.has_work:
        for one in REQUESTS:
            if one.arrival_step == len(plans):
                scheduler.add(Request(one.id, one.prompt_tokens, one.max_new_tokens))
        plans.append(scheduler.schedule())
        scheduler.complete(plans[-1])
    return plans


def compared(plans: list[StepPlan]) -> Occupancy:
    """The blocks that the plans hold, by the ledger, beside a simulation."""
    ledger, held = Ledger(SHAPE), []
    for plan in plans:
        ledger.apply(plan)
        held.append(ledger.owned_blocks)
    preempted = sum(len(plan.preempted) for plan in plans)
    return occupancy(held, preempted, REQUESTS, SHAPE, 1, CONFIG)


def test_the_same_scheduler_holds_the_same_blocks() -> None:
    found = compared(record(CONFIG, 7))
    assert (found.usable, found.mean_points) == (7, 0.0)
    assert max(found.recorded) == 7
    assert found.preempted[0] == found.preempted[1] > 0


def test_other_limits_are_seen() -> None:
    narrow = replace(CONFIG, max_num_seqs=1)
    found = compared(record(narrow, 7))
    assert found.mean_points > 10


def test_requests_that_arrive_together_keep_their_order() -> None:
    # The first one alone decides which blocks are held first.
    together = [RecordedRequest(0, 12, 1), RecordedRequest(1, 20, 1)]
    one = replace(CONFIG, max_num_seqs=1, max_num_batched_tokens=32)
    assert occupancy([], 0, together, SHAPE, 1, one).simulated == (3, 5, 0)


def test_points_are_of_usable_blocks_and_go_on_where_one_has_ended() -> None:
    found = Occupancy(10, recorded=(4, 7, 9), simulated=(4, 6, 9, 5), preempted=(0, 0))
    assert found.points == (0, -10, 0, 50)
    assert (found.mean_points, found.worst_step) == (15, 3)
    assert Occupancy(10, (), (), (0, 0)).worst_step is None


def test_an_engine_that_keeps_all_blocks() -> None:
    with pytest.raises(ValueError, match="8 of 8 blocks"):
        occupancy([], 0, REQUESTS, SHAPE, 8, CONFIG)


def scheduled(trial: Trial) -> Outcome:
    """Ten requests in blocks of 32, 256 tokens a step; the duration is in steps."""
    config = SchedulerConfig(
        max_num_seqs=trial.max_num_seqs, max_num_batched_tokens=256,
        watermark_blocks=trial.watermark_blocks, admission=trial.admission,
    )  # fmt: skip
    requests = [RecordedRequest(n, prompt, new) for n, (prompt, new) in enumerate(CROWD)]
    held, preempted = schedule_all(BlockPool(trial.blocks, 32), requests, config)
    return Outcome(preempted, sum(map(bool, held)))


def test_each_remedy_ends_preemption_when_it_is_applied() -> None:
    given = Trial(63, 256, 0)
    before = scheduled(given)
    assert before.preemptions == 5
    found = {remedy.change: remedy for remedy in find_remedies(given, 3, scheduled)}
    assert found.keys() == {"blocks", "max_num_seqs", "watermark_blocks"}
    for remedy in found.values():
        changed = given._replace(**{remedy.change: remedy.value})
        assert scheduled(changed) == (0, remedy.duration, None)
    assert found["max_num_seqs"].value < 3
    assert 63 < found["blocks"].value < 126
    assert found["watermark_blocks"].value < 32


def test_another_admission_is_a_remedy_and_what_it_leaves_is_told() -> None:
    given = Trial(63, 256, 0, "first_chunk")
    assert scheduled(given).preemptions == 38
    (admission,) = [r for r in find_remedies(given, 9, scheduled) if r.change == "admission"]
    assert (admission.preemptions, admission.duration) == scheduled(Trial(63, 256, 0))[:2]


@pytest.mark.parametrize("needed", [103, 109, 110, 149, 800])
def test_values_are_drawn_near_to_the_least_that_does(needed: int) -> None:
    def attempt(trial: Trial) -> Outcome:
        return Outcome(int(trial.blocks < needed), 1.0)

    (blocks,) = [r for r in find_remedies(Trial(100, 1, 0), 1, attempt) if r.change == "blocks"]
    assert needed <= blocks.value <= needed * 1.05


def test_more_memory_than_there_is_is_not_tried() -> None:
    tried: list[int] = []

    def attempt(trial: Trial) -> Outcome:
        tried.append(trial.blocks)
        return Outcome(7, 2.0)

    found = find_remedies(Trial(100, 1, 0), 1, attempt, most_blocks=130)
    assert max(tried) == 130
    assert Remedy("blocks", 130, 7, 2.0) in found
