"""Keys of full blocks, chained over the prefix, and counters of prefix hits.

    tokens   [ block 0 ........ ][ block 1 ........ ][ block 2 (partial) ]
    key      k0 = H(salt, b0)     k1 = H(k0, b1)      none: it is not full

Equal keys mean equal tokens up to the end of the block, so the block can be shared. A salt
partitions the cache.
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
