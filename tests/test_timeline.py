"""Slots that are never written: the timeline beside a slow count of every slot of every stay."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from event_makers import PAGED, arm_events, record

from experiment.replay.arm_events import split_by_arm
from experiment.replay.timeline import timeline
from kvsim.accounting.ledger import PoolShape
from kvsim.core.blocks import BlockPool
from kvsim.core.limits import SchedulerConfig
from kvsim.core.scheduler import Request, Scheduler
from kvsim.core.step import BlockOp, Chunk, OpKind, StepPlan


def never_written(shape: PoolShape, plans: Sequence[StepPlan]) -> list[int]:
    rows, problem = timeline(split_by_arm(record(arm_events(PAGED, shape, plans, {})))[0])
    assert problem is None
    return [row.never_written for row in rows]


def recounted(size: int, plans: Sequence[StepPlan]) -> list[int]:
    """For each plan, follow every slot of every unfinished request until it is given back."""
    return [
        sum(
            _is_never_written(request, slot, plans[place + 1 :])
            for request, slots in _unwritten(size, plans[: place + 1]).items()
            for slot in slots
        )
        for place in range(len(plans))
    ]


def _unwritten(size: int, plans: Sequence[StepPlan]) -> dict[int, set[int]]:
    """Slots, counted from the request's first, that it holds after these plans without content."""
    slots: dict[int, int] = {}
    written: dict[int, set[int]] = {}
    ended: set[int] = set()
    for plan in plans:
        ended |= {finish.request for finish in plan.finished}
        for op in plan.ops:
            assert op.request is not None
            if op.kind in (OpKind.ALLOCATE, OpKind.SWAP_IN):
                slots[op.request] = slots.get(op.request, 0) + len(op.blocks) * size
            elif op.kind is OpKind.SWAP_OUT:
                del slots[op.request]
            elif op.kind is OpKind.FREE:
                del slots[op.request]
                del written[op.request]
        for chunk in plan.chunks:
            positions = range(chunk.start, chunk.start + chunk.count)
            written.setdefault(chunk.request, set()).update(positions)
    return {r: set(range(n)) - written.get(r, set()) for r, n in slots.items() if r not in ended}


def _is_never_written(request: int, slot: int, later: Sequence[StepPlan]) -> bool:
    for plan in later:
        if any(op.request == request and op.kind.name in ("FREE", "SWAP_OUT") for op in plan.ops):
            return True
        if any(c.request == request and c.start <= slot < c.start + c.count for c in plan.chunks):
            return False
    return True


def test_slots_that_a_swap_gives_back_unwritten_are_never_written() -> None:
    """Request 0 writes 5 of 8 slots, is swapped out, comes back and writes the other 3."""
    plans = [
        StepPlan(0, (BlockOp(OpKind.ALLOCATE, 0, (0, 1)),), (Chunk(0, 0, 5, True),)),
        StepPlan(
            1,
            (
                BlockOp(OpKind.SWAP_OUT, 0, (0, 1), (0, 1)),
                BlockOp(OpKind.ALLOCATE, 1, (0,)),
            ),
            (Chunk(1, 0, 4, True),),
            preempted=(0,),
        ),
        StepPlan(
            2,
            (BlockOp(OpKind.FREE, 1, (0,)), BlockOp(OpKind.SWAP_IN, 0, (1, 0), (0, 1))),
            (Chunk(0, 5, 1, True),),
        ),
        StepPlan(3, (), (Chunk(0, 6, 2, True),)),
    ]
    assert never_written(PoolShape(2, 4, 4), plans) == [3, 0, 0, 0] == recounted(4, plans)


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_never_written_is_what_a_count_of_every_slot_finds(preemption: str) -> None:
    blocks, size = 9, 4
    limits = SchedulerConfig(
        max_num_batched_tokens=8, preemption="swap" if preemption == "swap" else "recompute",
        host_blocks=20,
    )  # fmt: skip
    scheduler = Scheduler(BlockPool(blocks, size), limits)
    for request in range(8):
        scheduler.add(Request(request, 3 + 2 * request, 9 - request))
    plans = []
    while scheduler.has_work:
        plans.append(scheduler.schedule())
        scheduler.complete(plans[-1])
    kinds = {op.kind for plan in plans for op in plan.ops}
    assert any(plan.preempted for plan in plans)
    assert (OpKind.SWAP_OUT in kinds) == (preemption == "swap")
    expected = recounted(size, plans)
    assert never_written(PoolShape(blocks, size, 4), plans) == expected
    assert len(set(expected)) > 3
