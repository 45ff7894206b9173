"""The block pool: fixed-size blocks, a free queue, reference counts and a table per request.

    request 0   logical   0   1                 physical   0   1   2   3   4   5
                table   [ 0 | 4 ]               owner      r0  r1  r1  -   r0  -
    request 1   logical   0   1                 refs       1   1   1   0   1   0
                table   [ 1 | 2 ]               free queue [3, 5]

Position ``p`` of a request lives in logical block ``p // block_size`` at offset
``p % block_size``; its table says which physical block that is. Every operation costs time
proportional to the blocks it names, never to the size of the pool.

After Kwon et al., "Efficient Memory Management for Large Language Model Serving with
PagedAttention" (arXiv 2309.06180), section 4.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass


class PoolError(Exception):
    """A block operation that must not happen; the pool is as it was before."""


class OutOfBlocksError(PoolError):
    """Fewer blocks are free than were asked for."""


@dataclass(frozen=True, slots=True)
class Location:
    """Where one position of a request is: ``table[logical] == physical``, slot ``offset`` in it."""

    logical: int
    physical: int
    offset: int


def blocks_needed(tokens: int, block_size: int) -> int:
    """Number of blocks of ``block_size`` slots that hold ``tokens`` tokens."""
    return -(-tokens // block_size)


class BlockPool:
    """Fixed-size blocks handed out to requests and taken back.

    Args:
        num_blocks: how many physical blocks there are, ids 0 to ``num_blocks - 1``.
        block_size: slots (tokens) in a block, from 1.

    Raises:
        ValueError: a size below 1.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool needs blocks and slots, not {num_blocks} x {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free: deque[int] = deque(range(num_blocks))
        self._refs = [0] * num_blocks
        self._tables: dict[int, list[int]] = {}

    @property
    def num_free(self) -> int:
        """Blocks that nobody owns."""
        return len(self._free)

    @property
    def owners(self) -> tuple[int, ...]:
        """Requests that hold at least one block."""
        return tuple(self._tables)

    def table(self, request: int) -> Sequence[int]:
        """Physical blocks of ``request`` in logical order; empty when it holds none."""
        return self._tables.get(request, ())

    def references(self, block: int) -> int:
        """How many requests own ``block``."""
        return self._refs[block]

    def allocate(self, request: int, count: int) -> tuple[int, ...]:
        """Append ``count`` free blocks to the table of ``request`` and return them.

        Raises:
            OutOfBlocksError: fewer than ``count`` are free; nothing is handed out then.
        """
        if count < 0:
            raise PoolError(f"cannot allocate {count} blocks")
        if count > len(self._free):
            raise OutOfBlocksError(f"{count} blocks asked for, {len(self._free)} free")
        blocks = tuple(self._free.popleft() for _ in range(count))
        for block in blocks:
            self._refs[block] = 1
        if blocks:
            self._tables.setdefault(request, []).extend(blocks)
        return blocks

    def free(self, request: int) -> tuple[int, ...]:
        """Give back every block of ``request``; return them in logical order.

        The last block re-enters the free queue first, so the head of a sequence, which others
        are likeliest to ask for again, survives longest.

        Raises:
            PoolError: the request holds nothing.
        """
        table = self._tables.pop(request, None)
        if table is None:
            raise PoolError(f"request {request} holds no blocks")
        for block in reversed(table):
            self._refs[block] -= 1
            if not self._refs[block]:
                self._free.append(block)
        return tuple(table)

    def locate(self, request: int, position: int) -> Location:
        """Map a position of ``request`` to its physical block and offset.

        Raises:
            PoolError: the request's table does not reach that position.
        """
        return locate(self.table(request), position, self.block_size)

    def check_integrity(self) -> None:
        """Compare the pool's records with each other.

        Raises:
            PoolError: a block is lost, held twice or counted wrongly.
        """
        held = Counter(block for table in self._tables.values() for block in table)
        free = Counter(self._free)
        if any(count != 1 for count in free.values()):
            raise PoolError("a block stands twice in the free queue")
        if strangers := (held.keys() | free.keys()) - set(range(self.num_blocks)):
            raise PoolError(f"no such blocks in the pool: {sorted(strangers)}")
        for block, refs in enumerate(self._refs):
            if held[block] != refs:
                raise PoolError(f"block {block} has {refs} references and {held[block]} owners")
            if (refs == 0) != (block in free):
                raise PoolError(f"block {block} with {refs} references: wrong in the free queue")


def locate(table: Sequence[int], position: int, block_size: int) -> Location:
    """Map ``position`` through a block table.

    Raises:
        PoolError: the table does not reach ``position``.
    """
    logical, offset = divmod(position, block_size)
    if position < 0 or logical >= len(table):
        raise PoolError(f"position {position} is outside a table of {len(table)} blocks")
    return Location(logical, table[logical], offset)
