"""Keys of full blocks, chained over the prefix, and counters of what they found.

    tokens   [ block 0 ........ ][ block 1 ........ ][ block 2 (part) ]
    key      k0 = H(salt, b0)     k1 = H(k0, b1)      none: it is not full

Equal keys mean equal tokens from the beginning of the sequence to the end of the block, so the
block can be shared. A salt partitions the cache.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

_DIGEST_BYTES = 16


class KeyChain:
    """Keys of a growing sequence of token ids, each computed once.

    Args:
        block_size: tokens in a block.
        salt: sequences with different salts never share.
    """

    def __init__(self, block_size: int, salt: str = "") -> None:
        self._block_size = block_size
        self._keys: list[bytes] = []
        self._root = hashlib.blake2b(salt.encode(), digest_size=_DIGEST_BYTES).digest()

    def keys(self, tokens: Sequence[int], count: int) -> Sequence[bytes]:
        """Keys of the first ``count`` blocks of ``tokens``, which only ever grows at its end.

        Raises:
            ValueError: there are not so many full blocks.
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
        """A chain for a sequence that has the same tokens so far and other ones later."""
        other = KeyChain(self._block_size)
        other._root, other._keys = self._root, list(self._keys)
        return other


@dataclass(slots=True)
class PrefixStats:
    """Counts in tokens. A share of hits divides by the queried tokens of the same kind.

    Attributes:
        queried: known tokens of requests at their first admission.
        hit_cross: of those, found in blocks that another request had published before the step.
        hit_batch: of those, found in blocks that another request publishes in the same step.
        requeried: known tokens of requests that come back after a preemption.
        hit_own: of those, found in blocks that the request itself had published.
        hit_again: of those, found in blocks of others.
    """

    queried: int = 0
    hit_cross: int = 0
    hit_batch: int = 0
    requeried: int = 0
    hit_own: int = 0
    hit_again: int = 0

    @property
    def hit_share(self) -> float | None:
        """Hits at first admission / tokens queried at first admission; None without any."""
        return (self.hit_cross + self.hit_batch) / self.queried if self.queried else None
