"""Full blocks found again by their content: lookup, publishing, and counts of hits.

    request 0   [ b0: k0 ][ b1: k1 ][ b2: part ]     publishes k0 -> b0, k1 -> b1 as they fill
    request 1   starts alike: lookup(k0, k1, k2')    finds b0, b1; computes from block 2 on

Keys come from the request (see :mod:`kvsim.prefix`), blocks and their content from the pool.
"""

from __future__ import annotations

from kvsim.blocks import BlockPool
from kvsim.prefix import PrefixStats
from kvsim.request import Request


class PrefixCache:
    """Publishes the blocks that requests fill and finds them for others.

    Args:
        enabled: without it nothing is published, so nothing is found.
    """

    def __init__(self, pool: BlockPool, enabled: bool) -> None:
        self.pool = pool
        self.enabled = enabled
        self.stats = PrefixStats()
        # Who published a block, and in which step: tells the kinds of hits apart.
        self._publisher: dict[int, tuple[int, int]] = {}

    def reset(self) -> tuple[int, ...] | None:
        """Forget all content and return its blocks; None, and nothing done, while any is owned."""
        cached = self.pool.cached
        if not self.pool.reset_cache():
            return None
        self._publisher.clear()
        return cached

    def find(self, request: Request) -> list[int]:
        """Blocks that hold the beginning of ``request``; at least one token is left to compute."""
        if not self.enabled or request.keys is None:
            return []
        return self.pool.lookup(request.keys((request.known - 1) // self.pool.block_size))

    def find_written(self, request: Request, step: int) -> list[int]:
        """As :meth:`find`, but only what was written before ``step``.

        While running requests are planned, one that publishes may still be preempted.
        """
        found = self.find(request)
        fresh = (i for i, block in enumerate(found) if self._publisher[block][1] >= step)
        return found[: next(fresh, len(found))]

    def publish(self, request: Request, written: int, step: int) -> None:
        """Let others find the blocks that this step fills.

        They may be found in the same step: every layer writes the keys and values of all
        requests before any of them attends.
        """
        full = written // self.pool.block_size
        if not self.enabled or request.keys is None or full <= request.published:
            return
        first = request.published
        new = self.pool.publish(request.id, first, request.keys(full)[first:])
        self._publisher.update(dict.fromkeys(new, (request.id, step)))
        request.published = full

    def retract_unwritten(self, request: Request) -> None:
        """Take back what ``request`` has published and will not write now."""
        if not request.published:
            return
        table = self.pool.table(request.id)
        for block in table[request.computed // self.pool.block_size : request.published]:
            if self._publisher.get(block, (None,))[0] == request.id:
                self.pool.retract(block)

    def count(self, request: Request, hits: list[int], step: int) -> None:
        """Count what ``request`` found when it was admitted."""
        if not self.enabled or request.keys is None:
            return
        size, stats = self.pool.block_size, self.stats
        again = request.preemptions > 0
        if again:
            stats.requeried += request.known
        else:
            stats.queried += request.known
        for block in hits:
            publisher, published = self._publisher[block]
            if again and publisher == request.id:
                stats.hit_own += size
            elif again:
                stats.hit_again += size
            elif published == step:
                stats.hit_batch += size
            else:
                stats.hit_cross += size
