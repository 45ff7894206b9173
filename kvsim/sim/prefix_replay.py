"""Prefix hits of a trace without a clock: requests one after another through a cache of blocks.

    request   a b c d        cache of 3, least recently used first
    hits      a b . .        [ x a b ] ─► touch a, b ─► c evicts x, d evicts a ─► [ b c d ]

Requests are looked up in order of arrival. Blocks are hits up to the first missing one; afterwards
all blocks of the request are cached. Running requests own nothing here and the last token of a
prompt is not exempt, so a timed simulation gives other values.

There are two hit rates: hit blocks / queried blocks, and tokens in hit blocks / prompt tokens (last
blocks are shorter).

``optimal`` evicts the block with the most distant next use (Belady, IBM Systems Journal 5(2),
1966). It bounds the block hits of any eviction policy.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kvsim.traces.types import TraceRequest

Eviction = Literal["lru", "fifo", "optimal"]
EVICTIONS: tuple[Eviction, ...] = ("lru", "fifo", "optimal")
_NEVER = 1 << 62


class NoHashIdsError(ValueError):
    """The trace has no usable hash ids."""


@dataclass(frozen=True, slots=True)
class PrefixReplay:
    """Result of a replay.

    Attributes:
        capacity: blocks; None: unlimited.
        requests: requests with hash ids; ``skipped`` counts those without.
        orphaned: cached blocks that were not hits because an earlier block of the prompt was
            missing. FIFO creates them by evicting old heads in spite of hits.
        evicted: evicted blocks.
    """

    eviction: Eviction
    capacity: int | None
    requests: int
    skipped: int
    blocks: int
    hit_blocks: int
    tokens: int
    hit_tokens: int
    orphaned: int
    evicted: int

    @property
    def hit_share_blocks(self) -> float | None:
        """Hit blocks / queried blocks over the whole trace; None without any."""
        return self.hit_blocks / self.blocks if self.blocks else None

    @property
    def bound_share_blocks(self) -> float | None:
        """With ``optimal``: upper bound of the share of hit blocks for this capacity.

        Counts orphaned blocks as hits.
        """
        return (self.hit_blocks + self.orphaned) / self.blocks if self.blocks else None

    @property
    def hit_share_tokens(self) -> float | None:
        """Tokens in hit blocks / prompt tokens over the whole trace; None without any."""
        return self.hit_tokens / self.tokens if self.tokens else None


@dataclass(frozen=True, slots=True)
class References:
    """All block references of a trace, in order, in flat arrays.

    Attributes:
        blocks: block ids renumbered from 0.
        ends: for each request, the end of its blocks in ``blocks``.
        prompts: prompt tokens of each request.
        block_size: tokens in a block.
    """

    blocks: Sequence[int]
    ends: Sequence[int]
    prompts: Sequence[int]
    block_size: int
    distinct: int
    skipped: int


def collect(requests: Iterable[TraceRequest]) -> References:
    """Flatten a trace and renumber its block ids.

    Raises:
        NoHashIdsError: no request has hash ids, or their block sizes differ.
    """
    numbers: dict[int, int] = {}
    blocks: list[int] = []
    ends: list[int] = []
    prompts: list[int] = []
    sizes: set[int | None] = set()
    skipped = 0
    for request in requests:
        if request.hash_ids is None:
            skipped += 1
            continue
        sizes.add(request.hash_block_size)
        blocks.extend([numbers.setdefault(each, len(numbers)) for each in request.hash_ids])
        ends.append(len(blocks))
        prompts.append(request.prompt_tokens)
    (size,) = sizes if len(sizes) == 1 else (None,)
    if size is None:
        raise NoHashIdsError(f"no hash ids of one block size: {sorted(map(str, sizes))}")
    return References(blocks, ends, prompts, size, len(numbers), skipped)


def replay_prefixes(
    references: References, eviction: Eviction, capacity: int | None
) -> PrefixReplay:
    """Replay a trace through a cache of ``capacity`` blocks; None: unlimited.

    Raises:
        ValueError: a capacity below 1.
    """
    if capacity is not None and capacity < 1:
        raise ValueError(f"a cache of {capacity} blocks")
    limit = references.distinct if capacity is None else capacity
    cache: _QueueCache | _OptimalCache
    if eviction == "optimal":
        cache = _OptimalCache(references, limit)
    else:
        cache = _QueueCache(limit, moves=eviction == "lru")
    size = references.block_size
    hit_blocks = hit_tokens = orphaned = at = 0
    for end, prompt in zip(references.ends, references.prompts, strict=True):
        hits, found = 0, 0
        for place, block in enumerate(references.blocks[at:end]):
            if cache.touch(at + place, block):
                found += 1
                hits += hits == place
        at = end
        hit_blocks += hits
        hit_tokens += min(hits * size, prompt)
        orphaned += found - hits
    return PrefixReplay(
        eviction,
        capacity,
        len(references.ends),
        references.skipped,
        len(references.blocks),
        hit_blocks,
        sum(references.prompts),
        hit_tokens,
        orphaned,
        cache.evicted,
    )


class _QueueCache:
    """Evicts the least recently used block, or without ``moves`` the oldest."""

    def __init__(self, capacity: int, moves: bool) -> None:
        self._capacity = capacity
        self._moves = moves
        self._blocks: OrderedDict[int, None] = OrderedDict()
        self.evicted = 0

    def touch(self, _: int, block: int, /) -> bool:
        """Reference and cache ``block``; return whether it was a hit."""
        if block in self._blocks:
            if self._moves:
                self._blocks.move_to_end(block)
            return True
        if len(self._blocks) == self._capacity:
            self._blocks.popitem(last=False)
            self.evicted += 1
        self._blocks[block] = None
        return False


class _OptimalCache:
    """Evicts the block with the most distant next use."""

    def __init__(self, references: References, capacity: int) -> None:
        self._capacity = capacity
        self._next = _next_uses(references)
        self._next_use: dict[int, int] = {}
        # (-next use, block); stale entries stay and are skipped.
        self._heap: list[tuple[int, int]] = []
        self.evicted = 0

    def touch(self, at: int, block: int, /) -> bool:
        """Reference and cache ``block`` at index ``at``; return whether it was a hit."""
        found = block in self._next_use
        if not found and len(self._next_use) == self._capacity:
            self._evict()
        self._next_use[block] = next_use = self._next[at]
        heapq.heappush(self._heap, (-next_use, block))
        return found

    def _evict(self) -> None:
        while True:
            next_use, block = heapq.heappop(self._heap)
            if self._next_use.get(block) == -next_use:
                del self._next_use[block]
                self.evicted += 1
                return


def _next_uses(references: References) -> list[int]:
    """Return the index of the next reference to the same block, for each reference."""
    blocks = np.asarray(references.blocks, np.int64)
    order = np.argsort(blocks, kind="stable")
    following = np.full(len(blocks), _NEVER, np.int64)
    same = blocks[order[1:]] == blocks[order[:-1]]
    following[order[:-1][same]] = order[1:][same]
    uses: list[int] = following.tolist()
    return uses
