"""Prefix cache: lookup and publication of full blocks, and counters of hits.

    request 0   [ b0: k0 ][ b1: k1 ][ b2: partial ]  publishes k0 -> b0, k1 -> b1 when full
    request 1   same prefix: lookup(k0, k1, k2')     finds b0, b1; computes from block 2 on

The request provides the keys (see :mod:`kvsim.core.prefix`), the pool holds the blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvsim.core.blocks import BlockPool
from kvsim.core.prefix import PrefixStats
from kvsim.core.request import Request


class PrefixCache:
    """Publishes full blocks and finds them for other requests.

    Args:
        enabled: if False, nothing is published or found.

    Attributes:
        found_late: hit tokens after a preemption that the request itself had never computed.
    """

    def __init__(self, pool: BlockPool, enabled: bool) -> None:
        self.pool = pool
        self.enabled = enabled
        self.stats = PrefixStats()
        self.found_late = 0

    def find(self, request: Request) -> Sequence[int]:
        """Return the blocks of the longest cached prefix, leaving at least one token to compute."""
        if not self.enabled or request.keys is None:
            return []
        return self.pool.lookup(request.keys((request.known - 1) // self.pool.block_size))

    def find_written(self, request: Request, step: int) -> Sequence[int]:
        """Return the prefix written before ``step``.

        A running request that publishes in this step may still be preempted in it.
        """
        return self.pool.written_before(self.find(request), step)

    def publish(self, request: Request, written: int, step: int) -> None:
        """Publish the blocks that this step fills.

        They may be found in the same step, because each layer writes the K and V of all requests
        before attention reads any.
        """
        if not self.enabled or request.keys is None:
            return
        full = written // self.pool.block_size
        if full <= request.published:
            return
        self.pool.publish(request.id, request.published, request.keys(full), step)
        request.published = full

    def retract_unwritten(self, request: Request) -> None:
        """Unpublish the blocks of ``request`` that will not be written now."""
        written = request.computed // self.pool.block_size
        if written < request.published:
            self.pool.retract(request.id, written)

    def count(self, request: Request, hits: Sequence[int], step: int) -> None:
        """Count the hits of ``request`` at its admission."""
        if not self.enabled or request.keys is None:
            return
        size, stats = self.pool.block_size, self.stats
        readmitted = request.preemptions > 0
        if readmitted:
            stats.requeried += request.known
            self.found_late += max(0, len(hits) * size - request.reached)
        else:
            stats.queried += request.known
        for publisher, published, blocks in self.pool.origins(hits):
            if readmitted and publisher == request.id:
                stats.hit_own += blocks * size
            elif readmitted:
                stats.hit_again += blocks * size
            elif published == step:
                stats.hit_batch += blocks * size
            else:
                stats.hit_cross += blocks * size
