"""The records of a block pool, their integrity check, and the pool's errors."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

Key = Hashable
_STACK_CHUNK = 1024


class PoolError(Exception):
    """An invalid block operation; the pool is unchanged."""


class OutOfBlocksError(PoolError):
    """Fewer blocks are free or cached than requested."""


@dataclass(frozen=True, slots=True)
class Location:
    """The slot of one position: ``table[logical] == physical``, slot ``offset`` in that block."""

    logical: int
    physical: int
    offset: int


def blocks_needed(tokens: int, block_size: int) -> int:
    """Return the number of blocks of ``block_size`` slots for ``tokens`` tokens."""
    return -(-tokens // block_size)


def locate(table: Sequence[int], position: int, block_size: int) -> Location:
    """Map ``position`` through a block table.

    Raises:
        PoolError: ``position`` is outside the table.
    """
    logical, offset = divmod(position, block_size)
    if position < 0 or logical >= len(table):
        raise PoolError(f"position {position} is outside a table of {len(table)} blocks")
    return Location(logical, table[logical], offset)


def block_array(blocks: Iterable[int] = ()) -> array[int]:
    """Return block ids as a contiguous array."""
    return array("i", blocks)


class PoolState:
    """The read-only part of :class:`kvsim.core.blocks.BlockPool`.

    Raises:
        ValueError: a size below 1.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool needs blocks and slots, not {num_blocks} x {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._tables: dict[int, array[int]] = {}
        # A stack whose first ``_top`` entries are allocated; blocks are allocated and freed at
        # ``_top``, as array slices. It grows to the blocks ever used, because the configured size
        # of a pool may be arbitrarily large.
        self._stack = block_array()
        self._top = 0
        # Blocks with content and without an owner, least recently used first.
        self._evictable: OrderedDict[int, None] = OrderedDict()
        self._by_key: dict[Key, int] = {}
        # Further blocks with a key of ``_by_key``, in the order of their publication.
        self._duplicates: dict[Key, list[int]] = {}
        self._keys: dict[int, Key] = {}
        # (publishing request, step) of a block; kept after its eviction.
        self._origins: dict[int, tuple[int, int]] = {}
        self._evicted: list[int] = []
        # Owners beyond the first, for shared blocks only, and their sum.
        self._extra_owners: dict[int, int] = {}
        self._extra = 0

    # -- state -----------------------------------------------------------------------------

    @property
    def num_free(self) -> int:
        """Blocks without an owner, cached ones included."""
        return self.num_blocks - self._top + len(self._evictable)

    @property
    def num_owned(self) -> int:
        """Blocks with at least one owner."""
        return self.num_blocks - self.num_free

    @property
    def extra_references(self) -> int:
        """Table entries beyond one for each owned block: the blocks that sharing saves."""
        return self._extra

    @property
    def num_cached(self) -> int:
        """Blocks with content and without an owner."""
        return len(self._evictable)

    def occupancy(self) -> tuple[int, int, int]:
        """Return (owned blocks, cached blocks, extra references)."""
        cached = len(self._evictable)
        return self._top - cached, cached, self._extra

    @property
    def cached(self) -> tuple[int, ...]:
        """The cached blocks in eviction order."""
        return tuple(self._evictable)

    def _free(self) -> Sequence[int]:
        """Blocks without owner and content, in allocation order."""
        return (*self._stack[self._top :], *range(len(self._stack), self.num_blocks))

    def _grow_stack(self, end: int) -> None:
        """Extend the stack to at least ``end`` entries, within the pool."""
        known = len(self._stack)
        target = max(end, 2 * known, _STACK_CHUNK)
        self._stack.extend(range(known, min(target, self.num_blocks)))

    @property
    def owners(self) -> tuple[int, ...]:
        """Requests with at least one block."""
        return tuple(self._tables)

    def table(self, request: int) -> Sequence[int]:
        """Return the physical blocks of ``request`` in logical order; empty without blocks."""
        return self._tables.get(request, ())

    def references(self, block: int) -> int:
        """Return the number of owners of ``block``.

        Searches all tables unless the block is shared; the pool itself does not need it.
        """
        if block in self._extra_owners:
            return self._extra_owners[block] + 1
        return int(any(block in table for table in self._tables.values()))

    def other_owners(self, block: int) -> int:
        """Return the number of owners of an owned ``block`` beyond one."""
        return self._extra_owners.get(block, 0)

    def locate(self, request: int, position: int) -> Location:
        """Map a position of ``request`` to its physical block and offset.

        Raises:
            PoolError: ``position`` is outside the request's table.
        """
        return locate(self.table(request), position, self.block_size)

    # -- integrity -------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Check the pool's records against each other; visits every block that was ever used.

        Raises:
            PoolError: a block is lost, listed twice, or has a wrong count of owners.
        """
        used = len(self._stack)  # the others are free
        free, held = self._content_free(), array("i", bytes(4 * used))
        for block in self.cached:
            if self._known(block, used) and free[block]:
                raise PoolError("a block stands twice in the free queues")
            free[block] = 1
        last = array("q", bytes(8 * used))  # the last table that a block was seen in, from 1 on
        for place, (request, table) in enumerate(self._tables.items(), start=1):
            for block in table:
                if self._known(block, used) and last[block] == place:
                    raise PoolError(f"the table of request {request} repeats a block")
                last[block] = place
                held[block] += 1
            if not table:
                raise PoolError(f"the table of request {request} is empty")
        if self._extra != sum(held) - sum(map(bool, held)):
            raise PoolError(f"{self._extra} extra owners are counted, which is wrong")
        self._check_owners(held)
        for block, owners in enumerate(held):
            if bool(owners) == bool(free[block]):
                raise PoolError(f"block {block} has {owners} owners: wrong in the free queues")
        self._check_keys()

    @staticmethod
    def _known(block: int, used: int) -> bool:
        if not 0 <= block < used:
            raise PoolError(f"no such block was ever used: {block}")
        return True

    def _content_free(self) -> bytearray:
        """Mark the used blocks that have neither owner nor content: a byte for each."""
        used = len(self._stack)
        free = bytearray(used)
        for block in self._stack[self._top :]:
            if self._known(block, used) and free[block]:
                raise PoolError("a block stands twice in the free queues")
            free[block] = 1
        return free

    def _check_owners(self, held: Sequence[int]) -> None:
        if self._extra_owners != {
            block: owners - 1 for block, owners in enumerate(held) if owners > 1
        }:
            raise PoolError("the owners of shared blocks are counted wrongly")

    def _check_keys(self) -> None:
        duplicates = [(block, key) for key, more in self._duplicates.items() for block in more]
        found = {(block, key) for key, block in self._by_key.items()}.union(duplicates)
        for item in self._keys.items():
            if item not in found:
                raise PoolError(f"block {item[0]} has a key under which it is not found")
        if len(self._by_key) + len(duplicates) != len(self._keys):
            raise PoolError("a key leads to a block that does not know it")
        if not self._duplicates.keys() <= self._by_key.keys() or not all(self._duplicates.values()):
            raise PoolError("duplicates are recorded without a block that is found")
        if any(block not in self._keys for block in self._evictable):
            raise PoolError("a cached block has no key")
        free = self._content_free()
        if any(free[block] for block in self._keys):
            raise PoolError("a block without content has a key")
