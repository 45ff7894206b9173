"""The block pool: fixed-size blocks, free and cached ones, reference counts, a table per request.

    request 0   logical   0   1                 physical   0   1   2   3   4   5
                table   [ 0 | 4 ]               owners     r0  r1  r1  -   r0  -
    request 1   logical   0   1   2                        r1
                table   [ 0 | 1 | 2 ]           more than one owner: {0: 1 more}
                                                free [3]   cached, least recently used first [5]

Position ``p`` of a request lives in logical block ``p // block_size`` at offset
``p % block_size``; its table says which physical block that is. A block with several owners is
shared: none of them may write to it before it has a copy of its own. A block whose content has a
key (see :mod:`kvsim.core.prefix`) outlives its last owner until its memory is needed.

Every operation costs time proportional to the blocks it names, never to the size of the pool;
where a block has nothing but one owner, its part is a copy of its number within a list. That is why
owners are counted only from the second on: a table is proof of the first.

After Kwon et al., "Efficient Memory Management for Large Language Model Serving with
PagedAttention" (arXiv 2309.06180), section 4.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence

from kvsim.core.pool_state import (
    Key,
    Location,
    OutOfBlocksError,
    PoolError,
    PoolState,
    blocks_needed,
    locate,
    some_blocks,
)

__all__ = [
    "BlockPool",
    "Key",
    "Location",
    "OutOfBlocksError",
    "PoolError",
    "blocks_needed",
    "locate",
    "some_blocks",
]

_LOOKED_UP_AT_ONCE = 64


class BlockPool(PoolState):
    """Fixed-size blocks handed out to requests, shared between them, and taken back.

    Args:
        num_blocks: how many physical blocks there are, ids 0 to ``num_blocks - 1``.
        block_size: slots (tokens) in a block, from 1.

    Raises:
        ValueError: a size below 1.
    """

    # -- handing out and taking back -------------------------------------------------------

    def allocate(self, request: int, count: int) -> tuple[int, ...]:
        """Append ``count`` blocks to the table of ``request``.

        Free blocks go first, then the least recently used cached ones lose their content (see
        :meth:`drain_evicted`).

        Raises:
            OutOfBlocksError: fewer than ``count`` can be had; nothing is handed out then.
        """
        return tuple(self._hand_out(request, count))

    def extend(self, request: int, count: int) -> None:
        """As :meth:`allocate`, and nobody is told which blocks those are."""
        self._hand_out(request, count)

    def _hand_out(self, request: int, count: int) -> array[int]:
        """The blocks that :meth:`allocate` appends; the list may be the table itself."""
        if count < 0:
            raise PoolError(f"cannot allocate {count} blocks")
        blocks = self._take(count)
        if blocks:
            table = self._tables.get(request)
            if table is None:
                self._tables[request] = blocks
            else:
                table += blocks
        return blocks

    def append(self, requests: Sequence[int]) -> None:
        """Append one block to the table of each of ``requests``, which hold some, in their order.

        Raises:
            OutOfBlocksError: fewer than that can be had; nothing is handed out then.
        """
        tables = self._tables
        for request, block in zip(requests, self._take(len(requests)), strict=True):
            tables[request].append(block)

    def _take(self, count: int) -> array[int]:
        """Take blocks off the queues, free ones first."""
        top, end = self._top, self._top + count
        if end <= self.num_blocks:
            if end > len(self._stack):
                self._reach(end)
            self._top = end
            return self._stack[top:end]
        if count > self.num_free:
            raise OutOfBlocksError(f"{count} blocks asked for, {self.num_free} free")
        self._reach(self.num_blocks)
        self._top = self.num_blocks
        blocks = self._stack[top:]
        blocks.extend(self._evict(count - len(blocks)))
        return blocks

    def _put_back(self, blocks: array[int]) -> None:
        """Blocks without content are free; the first of them is handed out next."""
        top = self._top
        self._top = start = top - len(blocks)
        self._stack[start:top] = blocks

    def share(
        self, request: int, blocks: Iterable[int], owners: Iterable[int] = ()
    ) -> Sequence[int]:
        """Append ``blocks``, which hold content already, to the table of ``request``.

        Args:
            owners: requests in whose tables those stand that have no key.

        Raises:
            PoolError: a block has neither a key nor one of ``owners``, or the request has it
                already.
        """
        shared = tuple(blocks)
        held = set(self._tables.get(request, ()))
        if repeated := held.intersection(shared):
            raise PoolError(f"request {request} has block {min(repeated)} already")
        # What has a key is owned or cached.
        if unproven := set(shared).difference(self._keys):
            unproven.difference_update(*(self.table(owner) for owner in owners))
            if unproven:
                raise PoolError(f"block {min(unproven)} holds nothing to share")
        evictable, more = self._evictable, self._more
        for block in shared:
            if block in evictable:
                del evictable[block]
            else:
                more[block] = more.get(block, 0) + 1
                self._extra += 1
        if shared:
            self._tables.setdefault(request, some_blocks()).extend(shared)
        return shared

    def copy_on_write(self, request: int, logical: int) -> tuple[int, int]:
        """Give ``request`` a block of its own in place of a shared one.

        Returns:
            The shared block, and the one that replaces it.

        Raises:
            PoolError: the block is not shared, or the table does not reach it.
            OutOfBlocksError: no block is left.
        """
        table = self._tables.get(request, some_blocks())
        if not 0 <= logical < len(table) or table[logical] not in self._more:
            raise PoolError(f"request {request} has no shared block {logical}")
        (new,) = self.allocate(request, 1)
        table.pop()
        old = table[logical]
        table[logical] = new
        self._part_with(old)
        return old, new

    def free(self, request: int) -> tuple[int, ...]:
        """Give back every block of ``request`` and return them; see :meth:`release`."""
        return self.release(request)[0]

    def release(self, request: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Give back every block of ``request``.

        The tail re-enters the queues first: of a sequence that stays cached the head, which
        others are likeliest to ask for again, is evicted last.

        Returns:
            All of them, and those that nobody owns now and whose content is kept; in logical order.

        Raises:
            PoolError: the request holds nothing.
        """
        table = self._tables.pop(request, None)
        if table is None:
            raise PoolError(f"request {request} holds no blocks")
        left = table
        if self._more:
            left = some_blocks(block for block in table if not self._part_with(block))
        kept: list[int] = []
        if self._keys:
            kept = [block for block in left if block in self._keys]
            self._evictable.update(dict.fromkeys(reversed(kept)))
            left = some_blocks(block for block in left if block not in self._keys)
        self._put_back(left)
        return tuple(table), tuple(kept)

    def drop(self, request: int) -> None:
        """As :meth:`release`, and nobody is told of it."""
        if self._more or self._keys or request not in self._tables:
            self.release(request)
            return
        self._put_back(self._tables.pop(request))

    def _part_with(self, block: int) -> bool:
        """Take one owner from ``block``; False, and nothing done, where it is the only one."""
        more = self._more.get(block, 0)
        if more > 1:
            self._more[block] = more - 1
        elif more:
            del self._more[block]
        self._extra -= more > 0
        return more > 0

    # -- content ---------------------------------------------------------------------------

    def publish(self, request: int, first: int, keys: Sequence[Key], step: int = 0) -> None:
        """Let blocks of ``request``, from logical block ``first`` on, be found from ``step`` on.

        The first block under a key stays the one that is found; a second one with the same
        content remains private.

        Args:
            keys: of all blocks of the request so far; they differ from each other.

        Raises:
            PoolError: the table of the request does not reach so far.
        """
        blocks: Sequence[int] = self.table(request)[first : len(keys)]
        keys = keys[first:]
        if len(blocks) < len(keys):
            raise PoolError(f"request {request} has no {len(keys)} blocks from {first} on")
        if not self._by_key.keys().isdisjoint(keys):
            found = zip(keys, blocks, strict=True)
            new = [(key, block) for key, block in found if key not in self._by_key]
            keys, blocks = [key for key, _ in new], [block for _, block in new]
        self._by_key.update(zip(keys, blocks, strict=True))
        self._keys.update(zip(blocks, keys, strict=True))
        self._origins.update(dict.fromkeys(blocks, (request, step)))

    def retract(self, request: int, first: int) -> None:
        """Take back what ``request`` published from logical block ``first`` on: never written."""
        for block in self._tables.get(request, [])[first:]:
            if block in self._keys and self._origins[block][0] == request:
                del self._by_key[self._keys.pop(block)]

    def lookup(self, keys: Sequence[Key]) -> Sequence[int]:
        """Blocks that hold the longest prefix of ``keys``, in order."""
        hits: list[int] = []
        get, start = self._by_key.get, 0
        while start < len(keys):
            # In pieces: most prompts part from what is there long before their end.
            found = list(map(get, keys[start : start + _LOOKED_UP_AT_ONCE]))
            if None in found:
                found = found[: found.index(None)]
                start = len(keys)
            hits += found  # type: ignore[arg-type]  # None is cut off
            start += _LOOKED_UP_AT_ONCE
        return hits

    def count_unreached(self, keys: Sequence[Key], found: int) -> int:
        """Blocks under ``keys`` that are there behind the first one that is missing.

        Args:
            found: keys before that one.
        """
        return sum(map(self._by_key.__contains__, keys[found:]))

    def origins(self, hits: Sequence[int]) -> Iterable[tuple[int, int, int]]:
        """Who published blocks that were found, in which step, and how many."""
        counts = Counter(map(self._origins.__getitem__, hits))
        return [(request, step, count) for (request, step), count in counts.items()]

    def written_before(self, hits: Sequence[int], step: int) -> Sequence[int]:
        """The first of the blocks that were found, up to one that was published later."""
        fresh = (i for i, block in enumerate(hits) if self._origins[block][1] >= step)
        return hits[: next(fresh, len(hits))]

    def count_cached(self, hits: Sequence[int]) -> int:
        """How many of the blocks that were found nobody owns."""
        return sum(map(self._evictable.__contains__, hits))

    def forget_evicted(self) -> None:
        """As :meth:`drain_evicted`, where nobody wants to know."""
        self._evicted.clear()

    def drain_evicted(self) -> tuple[int, ...]:
        """Blocks that lost their content since this was last asked, in that order."""
        if not self._evicted:
            return ()
        evicted, self._evicted = tuple(self._evicted), []
        return evicted

    def reset_cache(self) -> bool:
        """Forget all content; False, and nothing done, while a block is owned."""
        if self._tables:
            return False
        self._put_back(some_blocks(reversed(self._evictable)))
        self._evictable.clear()
        self._by_key.clear()
        self._keys.clear()
        self._origins.clear()
        return True

    def _evict(self, count: int) -> Sequence[int]:
        """Take the content of the ``count`` blocks that were used least recently."""
        pop = self._evictable.popitem
        evicted = [pop(last=False)[0] for _ in range(count)]
        for block in evicted:
            del self._by_key[self._keys.pop(block)]
        self._evicted += evicted
        return evicted
