"""A step plan in the making, and how its chunks take blocks out of the pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from kvsim.core.blocks import BlockPool, blocks_needed
from kvsim.core.request import Request
from kvsim.core.step import BlockOp, Chunk, OpKind


class Draft:
    """A plan in the making, and the token budget that is left for it.

    Args:
        cap: tokens of one request that the step computes at most; None: all that is left.
        lists: whether blocks that requests begin or go on with are listed among the operations.
    """

    __slots__ = ("budget", "cap", "chunks", "lists", "ops", "preempted", "step")

    def __init__(
        self,
        step: int,
        budget: int,
        ops: list[BlockOp],
        cap: int | None = None,
        lists: bool = True,
    ) -> None:
        self.step = step
        self.budget = budget
        self.cap = cap
        self.ops = ops
        self.lists = lists
        self.chunks: list[Chunk] = []
        self.preempted: list[int] = []

    @property
    def allowance(self) -> int:
        """Tokens that one request may have of what is left."""
        return self.budget if self.cap is None else min(self.budget, self.cap)

    def compute(self, chunk: Chunk) -> None:
        """Plan ``chunk``; its blocks are there."""
        self.chunks.append(chunk)
        self.budget -= chunk.count

    def withdraw(self, request: int) -> None:
        """Take back the chunk of a request that is preempted after it was planned."""
        for chunk in self.chunks:
            if chunk.request == request:
                self.chunks.remove(chunk)
                self.budget += chunk.count
                return


def next_chunk(request: Request, budget: int) -> Chunk:
    """All that is left to compute of ``request``, or as much as the budget allows."""
    start = request.computed
    left = request.prompt_tokens + request.generated - start
    if left <= budget:
        return Chunk(request.id, start, left, True)
    return Chunk(request.id, start, budget, False)


def missing_blocks(pool: BlockPool, chunks: Iterable[Chunk]) -> int:
    """Blocks that ``chunks`` take out of the pool: new ones, and copies of shared ones.

    If all owners of a shared block write to it, the last one needs no copy.
    """
    if not pool.extra_references:
        # Nothing is shared, so nothing is copied.
        size = pool.block_size
        return sum(
            max(-(-(chunk.start + chunk.count) // size) - len(pool.table(chunk.request)), 0)
            for chunk in chunks
        )
    missing = 0
    writers: Counter[int] = Counter()
    for chunk in chunks:
        table = pool.table(chunk.request)
        logical = chunk.start // pool.block_size
        if logical < len(table):
            writers[table[logical]] += 1
        end = blocks_needed(chunk.start + chunk.count, pool.block_size)
        missing += max(end - len(table), 0)
    copies = (min(count, pool.other_owners(block)) for block, count in writers.items())
    return missing + sum(copies)


def take_blocks(pool: BlockPool, chunk: Chunk, draft: Draft) -> None:
    """Give a request what ``chunk`` writes to; there is room."""
    logical = chunk.start // pool.block_size
    table = pool.table(chunk.request)
    if logical < len(table) and pool.other_owners(table[logical]):
        old, new = pool.copy_on_write(chunk.request, logical)
        _log_evicted(pool, draft)
        draft.ops.append(BlockOp(OpKind.COPY, chunk.request, (new,), (old,)))
    missing = blocks_needed(chunk.start + chunk.count, pool.block_size) - len(table)
    if missing > 0:
        append_blocks(pool, chunk.request, missing, draft)


def new_blocks(pool: BlockPool, chunk: Chunk) -> int:
    """Blocks that ``chunk`` needs behind those that its request has."""
    end = -(-(chunk.start + chunk.count) // pool.block_size)
    return end - len(pool.table(chunk.request))


def append_blocks(pool: BlockPool, request: int, count: int, draft: Draft) -> None:
    """Give a request new blocks; they are there."""
    if draft.lists:
        draft.ops.append(BlockOp(OpKind.ALLOCATE, request, allocate(pool, request, count, draft)))
    else:
        pool.extend(request, count)


def allocate(pool: BlockPool, request: int, count: int, draft: Draft) -> tuple[int, ...]:
    """Append blocks to the table of ``request``; what they evicted is in the draft before them."""
    blocks = pool.allocate(request, count)
    _log_evicted(pool, draft)
    return blocks


def _log_evicted(pool: BlockPool, draft: Draft) -> None:
    evicted = pool.drain_evicted()
    if evicted:
        draft.ops.append(BlockOp(OpKind.EVICT, None, evicted))
