"""The ledger of a paged pool from totals, in constant time.

    pool      owned blocks │ cached blocks │ free blocks          counted by the block pool
    tokens    written positions of all running requests           counted by the scheduler
              less the extra references to shared blocks

Valid if all shared blocks are full, i.e. for shared prefixes but not for forks that share a partial
block. A property test compares it with :class:`kvsim.accounting.ledger.Ledger` step by step.
"""

from __future__ import annotations

from kvsim.accounting.slots import PoolShape


class TallyError(Exception):
    """The totals contradict each other: the states would not sum to the pool."""


def block_levels(
    shape: PoolShape, live: int, owned: int, cached: int
) -> tuple[int, int, int, int, int]:
    """Return the live, cached, unwritten, watermark and free slots.

    Args:
        live: written slots; ``owned`` and ``cached`` are blocks.

    Raises:
        TallyError: more tokens than owned slots.
    """
    size, held_back = shape.block_size, shape.watermark_blocks
    unwritten = owned * size - live
    if live < 0 or unwritten < 0:
        raise TallyError(f"{live} live slots in {owned} blocks of {size}")
    free = shape.blocks - owned - cached
    if held_back > free:
        held_back = free
    return live, cached * size, unwritten, held_back * size, (free - held_back) * size
