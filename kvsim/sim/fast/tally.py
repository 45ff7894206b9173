"""The ledger of a paged pool from totals alone, in constant time.

    pool      owned blocks │ cached blocks │ free ones            the block pool counts them
    tokens    written positions of all running requests           the scheduler counts them
              less those of blocks that several own, once each

It holds where every block that several requests own is full: where prefixes are shared, that is,
and not where forks share a block that is being filled. A property test compares it, step by step,
with :class:`kvsim.accounting.ledger.Ledger`.
"""

from __future__ import annotations

from kvsim.accounting.slots import PoolShape
from kvsim.core.blocks import BlockPool


class TallyError(Exception):
    """The totals contradict each other: states would not sum to the pool."""


def block_levels(
    shape: PoolShape, live: int, owned: int, cached: int
) -> tuple[int, int, int, int, int]:
    """Slots that are live, cached, unwritten, watermark and free.

    Args:
        live: slots that hold something; ``owned`` and ``cached`` are blocks.

    Raises:
        TallyError: more tokens than slots that hold them.
    """
    size, held_back = shape.block_size, shape.watermark_blocks
    unwritten = owned * size - live
    if live < 0 or unwritten < 0:
        raise TallyError(f"{live} live slots in {owned} blocks of {size}")
    free = shape.blocks - owned - cached
    if held_back > free:
        held_back = free
    return live, cached * size, unwritten, held_back * size, (free - held_back) * size


def tally_slots(
    shape: PoolShape, pool: BlockPool, logical_tokens: int
) -> tuple[int, int, int, int, int]:
    """Slots now, as :func:`block_levels`.

    Args:
        logical_tokens: positions written by running requests; shared ones count for each.

    Raises:
        TallyError: more tokens than slots that hold them.
    """
    owned, cached, extra = pool.occupancy()
    return block_levels(shape, logical_tokens - extra * shape.block_size, owned, cached)
