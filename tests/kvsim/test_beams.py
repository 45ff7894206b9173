"""Beams of a search in the scheduler: one group that forks, prunes, gives way and comes back."""

from __future__ import annotations

import pytest
from scheduling import chunks, freed, make_scheduler, step

from kvsim.accounting.ledger import Ledger, PoolShape
from kvsim.core.blocks import BlockPool
from kvsim.core.draft import Draft
from kvsim.core.group import SequenceGroup
from kvsim.core.placement import Placement
from kvsim.core.preemption import Preemption
from kvsim.core.prefix import KeyChain, PrefixCache
from kvsim.core.request import Request
from kvsim.core.scheduler import RequestRefusedError, Scheduler, SchedulerConfig
from kvsim.core.step import BlockOp, Finish, FinishReason, OpKind, StepPlan


def forked(scheduler: Scheduler, beams: int = 2, prompt: int = 6, new: int = 9) -> StepPlan:
    """Add a search as request 0 and run its first step: beams 0, 10, 11 ... are live."""
    scheduler.add(Request(0, prompt, new, beams=beams))
    plan = scheduler.schedule()
    children = [Request(10 + i, prompt, new) for i in range(beams - 1)]
    scheduler.complete(plan, (), {0: children})
    return plan


def ops(plan: StepPlan) -> list[tuple[OpKind, int | None, tuple[int, ...]]]:
    return [(op.kind, op.request, op.blocks) for op in plan.ops]


def test_beams_share_the_prompt_and_copy_the_partial_block_but_once() -> None:
    scheduler = make_scheduler(20, 4)
    forked(scheduler, beams=3)
    plan = step(scheduler)
    # The last one of three to write to the shared block 1 keeps it.
    assert ops(plan) == [
        (OpKind.SHARE, 10, (0, 1)),
        (OpKind.SHARE, 11, (0, 1)),
        (OpKind.COPY, 0, (2,)),
        (OpKind.COPY, 10, (3,)),
    ]
    assert chunks(plan) == [(0, 6, 1, True), (10, 6, 1, True), (11, 6, 1, True)]
    assert scheduler.running == (0, 10, 11)


@pytest.mark.parametrize("reason", [FinishReason.PRUNED, FinishReason.STOP])
def test_a_beam_that_ends_is_freed_before_its_sibling_is_forked(reason: FinishReason) -> None:
    scheduler = make_scheduler(20, 4)
    forked(scheduler)
    with pytest.raises(ValueError, match="one more beam"):
        scheduler.fork(0, Request(12, 6, 9))
    stopped, pruned = ((0,), ()) if reason is FinishReason.STOP else ((), (0,))
    done = scheduler.complete(scheduler.schedule(), stopped, {10: [Request(12, 6, 9)]}, pruned)
    assert done == (Finish(0, reason),)
    assert scheduler.pool.table(0) == ()
    assert [scheduler.pool.other_owners(block) for block in scheduler.pool.table(10)] == [1, 1]
    following = scheduler.schedule()
    assert following.finished == done
    assert [op[0] for op in ops(following)] == [OpKind.FREE, OpKind.SHARE, OpKind.COPY]
    assert scheduler.running == (10, 12)


def test_beams_wait_for_a_step_that_has_room_for_all_of_them() -> None:
    scheduler = make_scheduler(40, 4, max_num_batched_tokens=8)
    scheduler.add(Request(1, 1, 4))
    scheduler.add(Request(2, 1, 2))
    forked(scheduler, beams=2, prompt=6)
    scheduler.add(Request(3, 30, 1))
    # 2 decodes, 2 beams, and what is left for the prompt of request 3.
    assert [(c[0], c[2]) for c in chunks(step(scheduler))] == [
        (1, 1),
        (2, 1),
        (0, 1),
        (10, 1),
        (3, 4),
    ]


def crowd(preemption: str, host_blocks: int = 0) -> tuple[Scheduler, list[StepPlan]]:
    """Request 1 outgrows the pool beside two beams of 12 tokens each, 8 of them in common."""
    config = SchedulerConfig(preemption=preemption, host_blocks=host_blocks)  # type: ignore[arg-type]
    scheduler = Scheduler(BlockPool(8, 4), config)
    scheduler.add(Request(1, 12, 20))
    plans = [forked(scheduler, prompt=8, new=8)]
    plans += [step(scheduler) for _ in range(5)]
    assert [plan.preempted for plan in plans] == [(), (), (), (), (), (0, 10)]
    return scheduler, plans


def until_back(scheduler: Scheduler) -> list[StepPlan]:
    """Steps up to the one that admits the search again."""
    plans = []
    for _ in range(30):
        plans.append(step(scheduler))
        if 0 in scheduler.running:
            return plans
    raise AssertionError("the search never comes back")


def test_beams_give_way_together_and_what_they_shared_is_shared_again() -> None:
    scheduler, plans = crowd("recompute")
    assert scheduler.waiting == (0, 10)
    assert plans[-1].waiting == 1  # a search waits as one
    back = until_back(scheduler)[-1]
    # Beam 10 shares the two blocks of the prompt; the newest token of each comes in the next step.
    assert chunks(back) == [(0, 0, 12, False), (10, 8, 4, False)]
    (share,) = (op for op in back.ops if op.kind is OpKind.SHARE)
    assert (share.request, share.blocks) == (10, tuple(scheduler.pool.table(0)[:2]))
    assert chunks(step(scheduler)) == [(0, 12, 1, True), (10, 12, 1, True)]


def test_blocks_that_beams_share_are_shared_in_host_memory_too() -> None:
    scheduler, plans = crowd("swap", host_blocks=4)
    out = [op for op in plans[-1].ops if op.kind is OpKind.SWAP_OUT]
    # 2 blocks of the prompt, and one more of each beam: 4 host blocks for 6 entries of tables.
    assert [op.sources for op in out] == [(0, 1, 2), (0, 1, 3)]
    ledger = Ledger(PoolShape(8, 4, 1))
    for plan in plans:
        ledger.apply(plan)
    back = until_back(scheduler)
    for plan in back:
        ledger.apply(plan)
    table = tuple(scheduler.pool.table(0))[:3]
    moved = [op for op in back[-1].ops if op.request in (0, 10)]
    assert moved[0] == BlockOp(OpKind.SWAP_IN, 0, table, (0, 1, 2))
    assert moved[1] == BlockOp(OpKind.SHARE, 10, table[:2], tokens=8)
    assert (moved[2].kind, moved[2].sources) == (OpKind.SWAP_IN, (3,))
    assert scheduler.host is not None
    assert scheduler.host.num_free == 4


def test_a_search_without_room_in_host_memory_is_computed_anew() -> None:
    _, plans = crowd("swap", host_blocks=3)
    assert {op.kind for op in plans[-1].ops} >= {OpKind.FREE}
    assert OpKind.SWAP_OUT not in {op.kind for op in plans[-1].ops}
    assert set(freed(plans[-1])) == {0, 10}


@pytest.mark.parametrize(
    ("blocks", "limits", "limit"),
    [
        (10, {}, "blocks"),
        (10, {"max_num_seqs": 2}, "seqs"),
        (10, {"max_num_batched_tokens": 2}, "tokens"),
    ],
)
def test_a_search_that_can_never_fit_is_refused(
    blocks: int, limits: dict[str, int], limit: str
) -> None:
    # 9 + 8 - 1 = 16 slots: 4 blocks, 2 of them full of prompt: 2 + 3 * (4 - 2) = 8.
    make_scheduler(8, 4).add(Request(0, 9, 8, beams=3))
    # One token more: 2 + 3 * (5 - 2) = 11.
    scheduler = make_scheduler(blocks, 4, **limits)
    with pytest.raises(RequestRefusedError) as caught:
        scheduler.add(Request(0, 9, 9 if limit == "blocks" else 8, beams=3))
    assert caught.value.limit == limit
    assert not scheduler.has_work


def test_a_search_counts_as_its_width_from_the_beginning() -> None:
    scheduler = make_scheduler(40, 4, max_num_seqs=4)
    scheduler.add(Request(0, 4, 5, beams=3))
    scheduler.add(Request(1, 4, 5))
    scheduler.add(Request(2, 4, 5))
    assert [c[0] for c in chunks(step(scheduler))] == [0, 1]


@pytest.mark.parametrize(("published", "shared"), [(5, 1), (4, 2)])
def test_a_beam_that_catches_up_takes_no_block_that_may_still_be_withdrawn(
    published: int, shared: int
) -> None:
    """A stranger has published what the beam needs: in an earlier step, or in this one.

    In this step the stranger may yet be preempted, and then never writes the block.
    """
    pool, config = BlockPool(12, 2), SchedulerConfig(prefix_caching=True)
    cache = PrefixCache(pool, enabled=True)
    placement = Placement(pool, cache, Preemption(pool, cache, config))
    chain, tokens = KeyChain(2), [7, 7, 1, 2, 3]

    def request(name: int) -> Request:
        return Request(name, 2, 9, lambda count: chain.keys(tokens, count), generated=3, beams=2)

    stranger, first, second = request(0), request(1), request(2)
    stranger.computed = first.computed = 4
    for one in (stranger, first):
        pool.allocate(one.id, 2)
    cache.publish(stranger, 4, published)
    group = SequenceGroup([first, second], 2, (0, 0), origins={2: (1, 1)})
    draft = Draft(5, 10, [])
    assert placement.advance(group, draft, lambda group, chunks, draft: True)
    (share,) = (op for op in draft.ops if op.kind is OpKind.SHARE)
    assert share.blocks == (pool.table(1)[0], pool.table(0)[1])[:shared]
