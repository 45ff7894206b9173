"""Recounts slot states from block tables, slot by slot, and replays plans."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from kvsim.accounting.ledger import Ledger, Owner
from kvsim.accounting.slots import PoolShape, SlotCounts, SlotState, count_slots
from kvsim.core.step import StepPlan


def recount(shape: PoolShape, owners: dict[int, Owner], cached: Collection[int] = ()) -> SlotCounts:
    """Count the state of every slot; ``cached`` are blocks with content and without an owner."""
    sums = dict.fromkeys(SlotState, 0)
    occupied: set[int] = set(cached)
    for block in range(shape.blocks):
        views = [(h, i) for h in owners.values() for i, b in enumerate(h.table) if b == block]
        if not views:
            if block in occupied:
                sums[SlotState.CACHED] += shape.block_size
            continue
        occupied.add(block)
        for offset in range(shape.block_size):
            slots = [(h, i * shape.block_size + offset) for h, i in views]
            sums[_slot_state(slots)] += 1
    return count_slots(shape, sums, len(occupied))


def _slot_state(views: Sequence[tuple[Owner, int]]) -> SlotState:
    """Return the state of a slot, given each owner and the slot's index in its sequence."""
    if any(not h.finished and h.padding <= i < h.padding + h.written for h, i in views):
        return SlotState.LIVE
    if any(i < h.padding for h, i in views):
        return SlotState.PADDING
    if all(h.finished for h, _ in views):
        return SlotState.FINISHED
    return SlotState.UNWRITTEN


def replay(shape: PoolShape, plans: Iterable[StepPlan]) -> list[SlotCounts]:
    """The slot counts after each of ``plans``, from an empty pool."""
    ledger = Ledger(shape)
    return [ledger.apply(plan) for plan in plans]
