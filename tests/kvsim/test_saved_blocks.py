"""What sharing saves, against examples worked by hand."""

from __future__ import annotations

from kvsim.accounting.ledger import Ledger, PoolShape
from kvsim.accounting.slots import Sharing
from kvsim.core.blocks import BlockPool
from kvsim.core.request import Request
from kvsim.core.scheduler import Scheduler
from kvsim.core.step import StepPlan


def sharing(ledger: Ledger) -> Sharing:
    return Sharing(ledger.table_entries, ledger.owned_blocks)


def parallel_samples() -> tuple[PoolShape, list[StepPlan]]:
    """Three samples of a prompt of 10 tokens, 4 new ones each, in blocks of 4.

    step 0   the prompt in blocks 0 1 2                          tables 3, blocks 3
    step 1   two children; positions 10: two copies of block 2   tables 9, blocks 2 + 3
    step 2   positions 11                                        tables 9, blocks 2 + 3
    step 3   positions 12, a block more for each                 tables 12, blocks 2 + 6
    step 4   all have ended                                      nothing
    """
    scheduler = Scheduler(BlockPool(20, 4))
    scheduler.add(Request(0, 10, 4))
    plans = []
    forks = {0: [Request(1, 10, 4), Request(2, 10, 4)]}
    while scheduler.has_work:
        plans.append(scheduler.schedule())
        scheduler.complete(plans[-1], (), forks if len(plans) == 1 else None)
    return PoolShape(20, 4, 1), plans


def test_three_samples_share_the_full_blocks_of_their_prompt() -> None:
    shape, plans = parallel_samples()
    ledger, seen = Ledger(shape), []
    for plan in plans:
        ledger.apply(plan)
        seen.append(sharing(ledger))
    assert seen == [Sharing(3, 3), Sharing(9, 5), Sharing(9, 5), Sharing(12, 8), Sharing(0, 0)]
    assert [moment.saved for moment in seen] == [0, 4, 4, 4, 0]
    assert seen[1].share == 4 / 9
    assert seen[0].share == 0


def test_nothing_held_has_no_share() -> None:
    assert sharing(Ledger(PoolShape(4, 4, 1))).share is None


def test_a_pruned_beam_no_longer_counts() -> None:
    """Two beams on 8 shared tokens; each writes block 2; then one is pruned, the other forked."""
    scheduler = Scheduler(BlockPool(20, 4))
    scheduler.add(Request(0, 8, 4, beams=2))
    ledger, seen = Ledger(PoolShape(20, 4, 1)), []
    moves: list[tuple[dict[int, list[Request]], tuple[int, ...]]] = [
        ({0: [Request(1, 8, 4)]}, ()),
        ({1: [Request(2, 8, 4)]}, (0,)),
        ({}, ()),
        ({}, ()),
    ]
    for forks, pruned in moves:
        plan = scheduler.schedule()
        ledger.apply(plan)
        seen.append(sharing(ledger))
        scheduler.complete(plan, (), forks, pruned)
    # 0 alone: 2 blocks. 0 and 1: 3 + 3 entries, 2 shared. 1 and 2, a copy of block 2 each: same.
    assert seen == [Sharing(2, 2), Sharing(6, 4), Sharing(6, 4), Sharing(6, 4)]
