"""Block pool: fixed-size blocks, reference counts, block tables and the prefix cache's blocks.

    request 0   logical   0   1                 physical   0   1   2   3   4   5
                table   [ 0 | 4 ]               owners     r0  r1  r1  -   r0  -
    request 1   logical   0   1   2                        r1
                table   [ 0 | 1 | 2 ]           extra owners: {0: 1}
                                                free [3]   cached, least recently used first [5]

Position ``p`` of a request is at offset ``p % block_size`` of logical block ``p // block_size``;
the block table maps it to a physical block. A block with several owners is shared and is copied
before it is written. A block with a key (see :mod:`kvsim.core.prefix`) stays cached after its
last owner has released it, until it is evicted.

Each operation takes time proportional to the blocks that it names, not to the size of the pool.
Owners are counted from the second on only, so that unshared blocks move as array slices.

Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with
PagedAttention" (arXiv 2309.06180), section 4.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

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


def block_array(blocks: Iterable[int] = ()) -> array[int]:
    """Return block ids as a contiguous array."""
    return array("i", blocks)


class BlockPool:
    """Allocates fixed-size blocks to requests, shares them and frees them.

    Args:
        num_blocks: physical blocks; their ids are 0 to ``num_blocks - 1``.
        block_size: slots (tokens) in a block.

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
    def num_cached(self) -> int:
        """Blocks with content and without an owner."""
        return len(self._evictable)

    @property
    def num_owned(self) -> int:
        """Blocks with at least one owner."""
        return self._top - self.num_cached

    @property
    def num_free(self) -> int:
        """Blocks without an owner, cached ones included."""
        return self.num_blocks - self.num_owned

    @property
    def extra_references(self) -> int:
        """Table entries beyond one for each owned block: the blocks that sharing saves."""
        return self._extra

    @property
    def cached(self) -> tuple[int, ...]:
        """The cached blocks in eviction order."""
        return tuple(self._evictable)

    @property
    def owners(self) -> tuple[int, ...]:
        """Requests with at least one block."""
        return tuple(self._tables)

    def table(self, request: int) -> Sequence[int]:
        """Return the physical blocks of ``request`` in logical order; empty without blocks."""
        return self._tables.get(request, ())

    def other_owners(self, block: int) -> int:
        """Return the number of owners of an owned ``block`` beyond one."""
        return self._extra_owners.get(block, 0)

    def locate(self, request: int, position: int) -> Location:
        """Map a position of ``request`` to its physical block and offset.

        Raises:
            PoolError: ``position`` is outside the request's table.
        """
        table = self.table(request)
        logical, offset = divmod(position, self.block_size)
        if not 0 <= logical < len(table):
            raise PoolError(f"position {position} is outside a table of {len(table)} blocks")
        return Location(logical, table[logical], offset)

    # -- allocation ------------------------------------------------------------------------
    def allocate(self, request: int, count: int) -> tuple[int, ...]:
        """Append ``count`` blocks to the table of ``request``.

        Takes free blocks first, then evicts the least recently used cached ones (see
        :meth:`drain_evicted`).

        Raises:
            OutOfBlocksError: fewer than ``count`` blocks are free or cached; none is allocated.
        """
        return tuple(self.extend(request, count))

    def extend(self, request: int, count: int) -> Sequence[int]:
        """Do the same as :meth:`allocate` without a copy; may return the table itself."""
        if count < 0:
            raise PoolError(f"cannot allocate {count} blocks")
        blocks = self._take(count)
        table = self._tables.get(request)
        if table is not None:
            table += blocks
        elif blocks:
            self._tables[request] = blocks
        return blocks

    def append(self, requests: Sequence[int]) -> None:
        """Append one block to the table of each of ``requests``, in order; each has a table.

        Raises:
            OutOfBlocksError: too few blocks are free or cached; none is allocated.
        """
        tables = self._tables
        for request, block in zip(requests, self._take(len(requests)), strict=True):
            tables[request].append(block)

    def _take(self, count: int) -> array[int]:
        """Remove blocks from the free stack, then evict."""
        top, end = self._top, self._top + count
        if end <= self.num_blocks:
            if end > len(self._stack):
                self._grow_stack(end)
            self._top = end
            return self._stack[top:end]
        if count > self.num_free:
            raise OutOfBlocksError(f"{count} blocks asked for, {self.num_free} free")
        self._grow_stack(self.num_blocks)
        self._top = self.num_blocks
        blocks = self._stack[top:]
        blocks.extend(self._evict(count - len(blocks)))
        return blocks

    def _grow_stack(self, end: int) -> None:
        """Extend the stack to at least ``end`` entries, within the pool."""
        known = len(self._stack)
        target = max(end, 2 * known, _STACK_CHUNK)
        self._stack.extend(range(known, min(target, self.num_blocks)))

    def _push_free(self, blocks: array[int]) -> None:
        """Push blocks without content on the free stack; the first is allocated next."""
        top = self._top
        self._top = start = top - len(blocks)
        self._stack[start:top] = blocks

    def share(
        self, request: int, blocks: Iterable[int], owners: Iterable[int] = ()
    ) -> Sequence[int]:
        """Append ``blocks``, which hold content, to the table of ``request``.

        Args:
            owners: requests whose tables contain the blocks without a key.

        Raises:
            PoolError: a block has neither a key nor one of ``owners``, or is already in the table.
        """
        shared = tuple(blocks)
        held = set(self._tables.get(request, ()))
        if repeated := held.intersection(shared):
            raise PoolError(f"request {request} has block {min(repeated)} already")
        # A block with a key is owned or cached.
        if unowned := set(shared).difference(self._keys):
            unowned.difference_update(*(self.table(owner) for owner in owners))
            if unowned:
                raise PoolError(f"block {min(unowned)} holds nothing to share")
        evictable, more = self._evictable, self._extra_owners
        for block in shared:
            if block in evictable:
                del evictable[block]
            else:
                more[block] = more.get(block, 0) + 1
                self._extra += 1
        if shared:
            self._tables.setdefault(request, block_array()).extend(shared)
        return shared

    def copy_on_write(self, request: int, logical: int) -> tuple[int, int]:
        """Replace a shared block of ``request`` by one of its own.

        Returns:
            The shared block and its replacement.

        Raises:
            PoolError: the block is not shared or not in the table.
            OutOfBlocksError: no block is free or cached.
        """
        table = self._tables.get(request, block_array())
        if not 0 <= logical < len(table) or table[logical] not in self._extra_owners:
            raise PoolError(f"request {request} has no shared block {logical}")
        (new,) = self.allocate(request, 1)
        table.pop()
        old = table[logical]
        table[logical] = new
        self._remove_owner(old)
        return old, new

    def free(self, request: int) -> tuple[int, ...]:
        """Release every block of ``request`` and return them; see :meth:`release`."""
        return tuple(self.release(request)[0])

    def release(self, request: int) -> tuple[Sequence[int], Sequence[int]]:
        """Release every block of ``request``.

        Blocks are queued tail first, so that the head of a prefix, the likeliest hit, is evicted
        last.

        Returns:
            All its blocks, and those that are now cached without an owner; in logical order.

        Raises:
            PoolError: the request has no blocks.
        """
        table = self._tables.pop(request, None)
        if table is None:
            raise PoolError(f"request {request} holds no blocks")
        left = table
        if self._extra_owners:
            left = block_array(block for block in table if not self._remove_owner(block))
        kept: list[int] = []
        if self._keys:
            kept = [block for block in left if block in self._keys]
            self._evictable.update(dict.fromkeys(reversed(kept)))
            left = block_array(block for block in left if block not in self._keys)
        self._push_free(left)
        return table, kept

    def _remove_owner(self, block: int) -> bool:
        """Remove one owner of a shared ``block``; return False if it has only one."""
        more = self._extra_owners.get(block, 0)
        if more > 1:
            self._extra_owners[block] = more - 1
        elif more:
            del self._extra_owners[block]
        self._extra -= more > 0
        return more > 0

    # -- content ---------------------------------------------------------------------------

    def publish(self, request: int, first: int, keys: Sequence[Key], step: int = 0) -> None:
        """Make blocks of ``request`` from logical block ``first`` on findable from ``step`` on.

        Several blocks may have one key; the first is found, and when it is evicted the next.

        Args:
            keys: of all blocks of the request so far, without repetition.

        Raises:
            PoolError: the table has fewer blocks than ``keys``.
        """
        blocks: Sequence[int] = self.table(request)[first : len(keys)]
        keys = keys[first:]
        if len(blocks) < len(keys):
            raise PoolError(f"request {request} has no {len(keys)} blocks from {first} on")
        self._keys.update(zip(blocks, keys, strict=True))
        self._origins.update(dict.fromkeys(blocks, (request, step)))
        if self._by_key.keys().isdisjoint(keys):
            self._by_key.update(zip(keys, blocks, strict=True))
            return
        for key, block in zip(keys, blocks, strict=True):
            if self._by_key.setdefault(key, block) != block:
                self._duplicates.setdefault(key, []).append(block)

    def retract(self, request: int, first: int) -> None:
        """Unpublish unwritten blocks of ``request`` from logical block ``first`` on."""
        for block in self._tables.get(request, [])[first:]:
            if block in self._keys and self._origins[block][0] == request:
                self._remove_key(block)

    def lookup(self, keys: Sequence[Key]) -> Sequence[int]:
        """Return the blocks of the longest cached prefix of ``keys``, in order."""
        hits: list[int] = []
        for key in keys:
            block = self._by_key.get(key)
            if block is None:
                break
            hits.append(block)
        return hits

    def origins(self, hits: Sequence[int]) -> Iterable[tuple[int, int, int]]:
        """Return (publishing request, step, number of blocks) of the blocks in ``hits``."""
        counts = Counter(map(self._origins.__getitem__, hits))
        return [(request, step, count) for (request, step), count in counts.items()]

    def written_before(self, hits: Sequence[int], step: int) -> Sequence[int]:
        """Return the leading ``hits`` that were published before ``step``."""
        fresh = (i for i, block in enumerate(hits) if self._origins[block][1] >= step)
        return hits[: next(fresh, len(hits))]

    def count_cached(self, hits: Sequence[int]) -> int:
        """Count the blocks in ``hits`` without an owner."""
        return sum(map(self._evictable.__contains__, hits))

    def drain_evicted(self) -> tuple[int, ...]:
        """Return the blocks evicted since the last call, in order."""
        if not self._evicted:
            return ()
        evicted, self._evicted = tuple(self._evicted), []
        return evicted

    def reset_cache(self) -> bool:
        """Drop all content; return False and do nothing while a block has an owner."""
        if self._tables:
            return False
        self._push_free(block_array(reversed(self._evictable)))
        self._evictable.clear()
        self._by_key.clear()
        self._duplicates.clear()
        self._keys.clear()
        self._origins.clear()
        return True

    def _evict(self, count: int) -> Sequence[int]:
        pop = self._evictable.popitem
        evicted = [pop(last=False)[0] for _ in range(count)]
        for block in evicted:
            self._remove_key(block)
        self._evicted += evicted
        return evicted

    def _remove_key(self, block: int) -> None:
        key = self._keys.pop(block)
        others = self._duplicates.get(key)
        if others is None:
            del self._by_key[key]
            return
        if self._by_key[key] == block:
            self._by_key[key] = others.pop(0)
        else:
            others.remove(block)
        if not others:
            del self._duplicates[key]

    # -- integrity -------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Check the pool's records against each other; visits every block that was ever used.

        Raises:
            PoolError: a block is lost, listed twice, or has a wrong count of owners.
        """
        held = Counter(chain.from_iterable(self._tables.values()))
        used = range(min(len(self._stack), self.num_blocks))
        if sorted(chain(held, self._stack[self._top :], self.cached)) != list(used):
            raise PoolError("a block is lost, or in two of: tables, free stack, cached blocks")
        for request, table in self._tables.items():
            if len(set(table)) < max(1, len(table)):
                raise PoolError(f"the table of request {request} is empty or repeats a block")
        if self._extra != held.total() - len(held):
            raise PoolError(f"{self._extra} extra owners are counted, which is wrong")
        self._check_records()

    def _check_records(self) -> None:
        """Check what is recorded of shared blocks and of content."""
        held = Counter(chain.from_iterable(self._tables.values()))
        if self._extra_owners != {block: n - 1 for block, n in held.items() if n > 1}:
            raise PoolError("the owners of shared blocks are counted wrongly")
        found = [(block, key) for key, block in self._by_key.items()]
        found += [(block, key) for key, more in self._duplicates.items() for block in more]
        if len(found) != len(self._keys) or set(found) != set(self._keys.items()):
            raise PoolError("a block has a key under which it is not found, or the reverse")
        if not self._duplicates.keys() <= self._by_key.keys():
            raise PoolError("duplicates are recorded without a block that is found")
        if not self._evictable.keys() <= self._keys.keys():
            raise PoolError("a cached block has no key")
        if not self._keys.keys().isdisjoint(self._stack[self._top :]):
            raise PoolError("a block without content has a key")
