"""The ledger's witness: counts again from the tables alone, slot by slot. Slow and plain."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kvsim.accounting.ledger import Holder
from kvsim.accounting.slots import PoolShape, SlotCounts, SlotState, count_slots


def recount(
    shape: PoolShape, holders: dict[int, Holder], cached: Collection[int] = ()
) -> SlotCounts:
    """Visit every slot and ask every holder; ``cached`` are ownerless blocks with content."""
    sums = dict.fromkeys(SlotState, 0)
    occupied: set[int] = set(cached)
    for block in range(shape.blocks):
        views = [(h, i) for h in holders.values() for i, b in enumerate(h.table) if b == block]
        if not views:
            if block in occupied:
                sums[SlotState.CACHED] += shape.block_size
            continue
        occupied.add(block)
        for offset in range(shape.block_size):
            slots = [(h, i * shape.block_size + offset) for h, i in views]
            sums[_slot_state(slots)] += 1
    return count_slots(shape, sums, len(occupied))


def _slot_state(views: Sequence[tuple[Holder, int]]) -> SlotState:
    """State of an owned slot that each holder sees at the given index of its sequence."""
    if any(not h.finished and h.padding <= i < h.padding + h.written for h, i in views):
        return SlotState.LIVE
    if any(i < h.padding for h, i in views):
        return SlotState.PADDING
    if all(h.finished for h, _ in views):
        return SlotState.FINISHED
    return SlotState.UNWRITTEN
