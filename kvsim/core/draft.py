"""Construction of a step plan; allocation and release of blocks with their operations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from kvsim.core.blocks import BlockPool
from kvsim.core.prefix import PrefixCache
from kvsim.core.request import Request
from kvsim.core.step import BlockOp, Chunk, OpKind, PreemptionCause


@dataclass(slots=True)
class Draft:
    """A plan under construction and the token budget left for it.

    Attributes:
        cap: most tokens of one request in this step; None: the whole budget.
        defer_prefills: compute newest tokens only.
        list_ops: list ALLOCATE and SHARE operations.
        prefills: the step prefills, or did before a preemption took it back.
        causes: why the requests in ``preempted`` were.
    """

    step: int
    budget: int
    ops: list[BlockOp]
    cap: int | None = None
    defer_prefills: bool = False
    list_ops: bool = True
    prefills: bool = False
    chunks: list[Chunk] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)
    causes: list[PreemptionCause] = field(default_factory=list)

    @property
    def allowance(self) -> int:
        """Tokens of the remaining budget that one request may use."""
        return self.budget if self.cap is None else min(self.budget, self.cap)

    def add_chunk(self, chunk: Chunk) -> None:
        """Add ``chunk``, whose blocks are allocated."""
        self.chunks.append(chunk)
        self.budget -= chunk.count

    def remove_chunk(self, request: int) -> None:
        """Remove the chunk of a request that is preempted after it was planned."""
        for chunk in self.chunks:
            if chunk.request == request:
                self.chunks.remove(chunk)
                self.budget += chunk.count
                return


def next_chunk(request: Request, budget: int) -> Chunk:
    """Return the remaining tokens of ``request``, cut to ``budget``."""
    start = request.computed
    left = request.prompt_tokens + request.generated - start
    if left <= budget:
        return Chunk(request.id, start, left, True)
    return Chunk(request.id, start, budget, False)


def missing_blocks(pool: BlockPool, chunks: Iterable[Chunk]) -> int:
    """Count the blocks that ``chunks`` need: new ones, and copies of shared ones.

    If all owners write to a shared block, the last one needs no copy.
    """
    if not pool.extra_references:
        # Nothing is shared, so nothing is copied.
        return sum(max(new_blocks(pool, chunk), 0) for chunk in chunks)
    missing = 0
    writers: Counter[int] = Counter()
    for chunk in chunks:
        table = pool.table(chunk.request)
        logical = chunk.start // pool.block_size
        if logical < len(table):
            writers[table[logical]] += 1
        missing += max(new_blocks(pool, chunk), 0)
    copies = (min(count, pool.other_owners(block)) for block, count in writers.items())
    return missing + sum(copies)


def new_blocks(pool: BlockPool, chunk: Chunk) -> int:
    """Count the blocks that ``chunk`` needs beyond the table of its request."""
    end = -(-(chunk.start + chunk.count) // pool.block_size)
    return end - len(pool.table(chunk.request))


def take_blocks(pool: BlockPool, chunk: Chunk, draft: Draft) -> None:
    """Allocate the blocks that ``chunk`` writes; enough must be free."""
    request, logical = chunk.request, chunk.start // pool.block_size
    table = pool.table(request)
    if logical < len(table) and pool.other_owners(table[logical]):
        old, new = pool.copy_on_write(request, logical)
        _log_evicted(pool, draft)
        draft.ops.append(BlockOp(OpKind.COPY, request, (new,), (old,)))
    missing = new_blocks(pool, chunk)
    if missing > 0 and draft.list_ops:
        draft.ops.append(BlockOp(OpKind.ALLOCATE, request, allocate(pool, request, missing, draft)))
    elif missing > 0:
        pool.extend(request, missing)


def allocate(pool: BlockPool, request: int, count: int, draft: Draft) -> tuple[int, ...]:
    """Allocate blocks and record the evictions before the allocation."""
    blocks = pool.allocate(request, count)
    _log_evicted(pool, draft)
    return blocks


def release_blocks(
    cache: PrefixCache, request: Request, kind: OpKind = OpKind.FREE, hosts: tuple[int, ...] = ()
) -> BlockOp:
    """Release the blocks of ``request`` and unpublish those that it has not written."""
    cache.retract_unwritten(request)
    blocks, kept = cache.pool.release(request.id)
    return BlockOp(kind, request.id, tuple(blocks), hosts, tuple(kept))


def _log_evicted(pool: BlockPool, draft: Draft) -> None:
    evicted = pool.drain_evicted()
    if evicted:
        draft.ops.append(BlockOp(OpKind.EVICT, None, evicted))
