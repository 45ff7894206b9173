"""Prefix cache: keys of full blocks, their lookup and publication, and counters of hits.

    tokens   [ block 0 ........ ][ block 1 ........ ][ block 2 (partial) ]
    key      k0 = H(salt, b0)     k1 = H(k0, b1)      none: it is not full

Equal keys mean equal tokens up to the end of the block, so the block can be shared. A salt
partitions the cache.

    request 0   [ b0: k0 ][ b1: k1 ][ b2: partial ]  publishes k0 -> b0, k1 -> b1 when full
    request 1   same prefix: lookup(k0, k1, k2')     finds b0, b1; computes from block 2 on

The request provides the keys, the pool holds the blocks.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from kvsim.core.blocks import BlockPool
from kvsim.core.request import Request

_DIGEST_BYTES = 16


class KeyChain:
    """Keys of a growing sequence of token ids, each computed once.

    Args:
        block_size: tokens in a block.
        salt: sequences with different salts share no blocks.
    """

    def __init__(self, block_size: int, salt: str = "") -> None:
        self._block_size = block_size
        self._keys: list[bytes] = []
        self._root = hashlib.blake2b(salt.encode(), digest_size=_DIGEST_BYTES).digest()

    def keys(self, tokens: Sequence[int], count: int) -> Sequence[bytes]:
        """Return the keys of the first ``count`` blocks of ``tokens``, which only grows.

        Raises:
            ValueError: ``tokens`` has fewer full blocks.
        """
        size = self._block_size
        while len(self._keys) < count:
            index = len(self._keys)
            parent = self._keys[-1] if self._keys else self._root
            block = array("q", tokens[index * size : (index + 1) * size])
            if len(block) < size:
                raise ValueError(f"block {index} is not full")
            digest = hashlib.blake2b(parent + block.tobytes(), digest_size=_DIGEST_BYTES)
            self._keys.append(digest.digest())
        return self._keys[:count]

    def fork(self) -> KeyChain:
        """Return a chain for a sequence that shares the tokens so far."""
        other = KeyChain(self._block_size)
        other._root, other._keys = self._root, list(self._keys)
        return other


@dataclass(slots=True)
class PrefixStats:
    """Counters in tokens.

    Attributes:
        queried: known tokens of requests at their first admission.
        hit_cross: hits at first admission in blocks published before the step.
        hit_batch: hits at first admission in blocks published in the same step.
        requeried: known tokens of requests readmitted after a preemption.
        hit_own: hits at readmission in blocks that the request itself had published.
        hit_again: hits at readmission in blocks of others.
    """

    queried: int = 0
    hit_cross: int = 0
    hit_batch: int = 0
    requeried: int = 0
    hit_own: int = 0
    hit_again: int = 0

    @property
    def hit_share(self) -> float | None:
        """Hits / queried tokens, both at first admission; None if nothing was queried."""
        return (self.hit_cross + self.hit_batch) / self.queried if self.queried else None


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
