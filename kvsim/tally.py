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
from kvsim.slots import PoolShape, SlotCounts, SlotState, count_slots


class TallyError(Exception):
    """The totals contradict each other: states would not sum to the pool."""


def tally(shape: PoolShape, pool: BlockPool, logical_tokens: int) -> SlotCounts:
    """Slots in each state now.

    Args:
        logical_tokens: positions written by running requests; shared ones count for each.

    Raises:
        TallyError: more tokens than slots that hold them.
    """
    size = shape.block_size
    live = logical_tokens - pool.extra_references * size
    unwritten = pool.num_owned * size - live
    if live < 0 or unwritten < 0:
        raise TallyError(f"{live} live slots in {pool.num_owned} blocks of {size}")
    sums = {
        SlotState.LIVE: live,
        SlotState.CACHED: pool.num_cached * size,
        SlotState.UNWRITTEN: unwritten,
    }
    return count_slots(shape, sums, pool.num_owned + pool.num_cached)
