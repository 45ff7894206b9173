"""Full blocks found again by their content: lookup, publishing, and counts of hits.

    request 0   [ b0: k0 ][ b1: k1 ][ b2: part ]     publishes k0 -> b0, k1 -> b1 as they fill
    request 1   starts alike: lookup(k0, k1, k2')    finds b0, b1; computes from block 2 on

Keys come from the request (see :mod:`kvsim.core.prefix`), blocks and their content from the pool.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvsim.core.blocks import BlockPool
from kvsim.core.prefix import PrefixStats
from kvsim.core.request import Request


class PrefixCache:
    """Publishes the blocks that requests fill and finds them for others.

    Args:
        enabled: without it nothing is published, so nothing is found.

    Attributes:
        found_late: tokens that requests found when they came back after a preemption and had
            never had before: others computed them meanwhile.
    """

    def __init__(self, pool: BlockPool, enabled: bool) -> None:
        self.pool = pool
        self.enabled = enabled
        self.stats = PrefixStats()
        # Blocks that were asked for at admission, were there, and hidden by a missing one before
        # them. Who gives blocks back tail first makes few: see kvsim.core.blocks.BlockPool.release.
        self.orphaned = 0
        self.found_late = 0

    def reset(self) -> tuple[int, ...] | None:
        """Forget all content and return its blocks; None, and nothing done, while any is owned."""
        cached = self.pool.cached
        return cached if self.pool.reset_cache() else None

    def find(self, request: Request) -> Sequence[int]:
        """Blocks that hold the beginning of ``request``; at least one token is left to compute."""
        if not self.enabled or request.keys is None:
            return []
        return self.pool.lookup(request.keys((request.known - 1) // self.pool.block_size))

    def find_written(self, request: Request, step: int) -> Sequence[int]:
        """As :meth:`find`, but only what was written before ``step``.

        While running requests are planned, one that publishes may still be preempted.
        """
        return self.pool.written_before(self.find(request), step)

    def publish(self, request: Request, written: int, step: int) -> None:
        """Let others find the blocks that this step fills.

        They may be found in the same step: every layer writes the keys and values of all
        requests before any of them attends.
        """
        if not self.enabled or request.keys is None:
            return
        full = written // self.pool.block_size
        if full <= request.published:
            return
        self.pool.publish(request.id, request.published, request.keys(full), step)
        request.published = full

    def retract_unwritten(self, request: Request) -> None:
        """Take back what ``request`` has published and will not write now."""
        written = request.computed // self.pool.block_size
        if written < request.published:
            self.pool.retract(request.id, written)

    def count_orphaned(self, request: Request, found: int) -> None:
        """Count blocks that ``request``, of which ``found`` are, asked for and did not reach."""
        if not self.enabled or request.keys is None:
            return
        asked = (request.known - 1) // self.pool.block_size
        if found < asked:
            self.orphaned += self.pool.count_unreached(request.keys(asked), found)

    def count(self, request: Request, hits: Sequence[int], step: int) -> None:
        """Count what ``request`` found when it was admitted."""
        if not self.enabled or request.keys is None:
            return
        size, stats = self.pool.block_size, self.stats
        again = request.preemptions > 0
        if again:
            stats.requeried += request.known
            self.found_late += max(0, len(hits) * size - request.reached)
        else:
            stats.queried += request.known
        for publisher, published, blocks in self.pool.origins(hits):
            if again and publisher == request.id:
                stats.hit_own += blocks * size
            elif again:
                stats.hit_again += blocks * size
            elif published == step:
                stats.hit_batch += blocks * size
            else:
                stats.hit_cross += blocks * size
