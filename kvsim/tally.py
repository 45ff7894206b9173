"""The ledger of a paged pool from totals alone, in constant time.

    pool      owned blocks │ cached blocks │ free ones            the block pool counts them
    tokens    written positions of all running requests           the scheduler counts them
              less those of blocks that several own, once each

It holds where every block that several requests own is full: where prefixes are shared, that is,
and not where forks share a block that is being filled. A property test compares it, step by step,
with :class:`kvsim.ledger.Ledger`.
"""

from __future__ import annotations

from kvsim.blocks import BlockPool
from kvsim.slots import PoolShape, SlotCounts, SlotState

_STATES = (
    SlotState.LIVE,
    SlotState.CACHED,
    SlotState.UNWRITTEN,
    SlotState.WATERMARK,
    SlotState.FREE,
)


class TallyError(Exception):
    """The totals contradict each other: states would not sum to the pool."""


def tally_slots(
    shape: PoolShape, pool: BlockPool, logical_tokens: int
) -> tuple[int, int, int, int, int]:
    """Slots now: live, cached, unwritten, watermark, free; arguments as for :func:`tally`.

    Raises:
        TallyError: more tokens than slots that hold them.
    """
    size = shape.block_size
    owned, cached, extra = pool.occupancy()
    live = logical_tokens - extra * size
    unwritten = owned * size - live
    if live < 0 or unwritten < 0:
        raise TallyError(f"{live} live slots in {owned} blocks of {size}")
    free = (shape.blocks - owned - cached) * size
    if not shape.watermark_blocks:
        return live, cached * size, unwritten, 0, free
    held_back = min(shape.watermark_blocks * size, free)
    return live, cached * size, unwritten, held_back, free - held_back


def tally(shape: PoolShape, pool: BlockPool, logical_tokens: int) -> SlotCounts:
    """Slots in each state now; states without any are left out.

    Args:
        logical_tokens: positions written by running requests; shared ones count for each.

    Raises:
        TallyError: more tokens than slots that hold them.
    """
    slots = tally_slots(shape, pool, logical_tokens)
    return SlotCounts({state: count for state, count in zip(_STATES, slots, strict=True) if count})
