"""Step plans of contiguous caches.

A preallocated cache is a pool whose blocks are slabs of the maximum length:

    slab 0   [pad pad pad | prompt ... | generated ... | never written .... ]
    slab 1   [prompt ................. | generated ... | never written .... ]

so it uses the same log format and ledger as a paged one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvsim.core.blocks import BlockPool, OutOfBlocksError
from kvsim.core.step import BlockOp, Chunk, Finish, FinishReason, OpKind, StepPlan


@dataclass(slots=True)
class _Row:
    written: int
    ended: bool = False


class _RowPlanner:
    """Rows of a cache that step together, each with its blocks; base of both planners."""

    def __init__(self, blocks: int, block_size: int) -> None:
        self._pool = BlockPool(blocks, block_size)
        self._rows: dict[int, _Row] = {}
        self._finished: list[Finish] = []
        self._step = 0

    def tables(self) -> dict[int, list[int]]:
        """Return the blocks of every request that has some."""
        return {request: list(self._pool.table(request)) for request in self._pool.owners}

    def written(self) -> dict[int, int]:
        """Return the positions written by each unfinished request, without padding."""
        return {request: row.written for request, row in self._rows.items() if not row.ended}

    def release(
        self, finished: Sequence[tuple[int, FinishReason]] = (), waiting: int = 0
    ) -> StepPlan:
        """End the remaining rows and free all blocks."""
        self._end(finished)
        owners = self._pool.owners
        # Last slab first: the pool allocates the block freed last first, so the next batch starts
        # at the first slab.
        freed = reversed(owners) if self._pool.block_size > 1 else owners
        ops = [BlockOp(OpKind.FREE, r, self._pool.free(r)) for r in freed]
        self._rows = {}
        return self._plan(ops, [], waiting)

    def _end(self, finished: Sequence[tuple[int, FinishReason]]) -> None:
        for request, reason in finished:
            self._rows[request].ended = True
            self._finished.append(Finish(request, reason))

    def _plan(self, ops: Sequence[BlockOp], chunks: Sequence[Chunk], waiting: int) -> StepPlan:
        finished, self._finished = tuple(self._finished), []
        plan = StepPlan(self._step, tuple(ops), tuple(chunks), (), finished, waiting)
        self._step += 1
        return plan


class StaticBatchPlanner(_RowPlanner):
    """Plans batches that start, step and are released together.

    Each request takes one slab. Shorter prompts are left-padded to the longest one, as in
    Transformers' batched generation. A request that ends early keeps its slab until
    :meth:`release`, and its row is still computed and written. Batches of one run requests
    sequentially.

    Args:
        slabs: number of slabs reserved.
        max_length: slots in a slab.
    """

    def __init__(self, slabs: int, max_length: int) -> None:
        super().__init__(slabs, max_length)

    def start(self, prompts: Sequence[tuple[int, int]], waiting: int = 0) -> StepPlan:
        """Prefill a batch of (request id, prompt tokens); ``waiting`` requests stay queued.

        Raises:
            kvsim.core.blocks.OutOfBlocksError: more requests than free slabs.
        """
        longest = max(tokens for _, tokens in prompts)
        ops, chunks = [], []
        for request, tokens in prompts:
            ops.append(BlockOp(OpKind.ALLOCATE, request, self._pool.allocate(request, 1)))
            chunks.append(Chunk(request, 0, tokens, samples=True, padding=longest - tokens))
            self._rows[request] = _Row(tokens)
        return self._plan(ops, chunks, waiting)

    def decode(
        self, finished: Sequence[tuple[int, FinishReason]] = (), waiting: int = 0
    ) -> StepPlan:
        """Plan one more position for every row; rows in ``finished`` sample nothing."""
        self._end(finished)
        chunks = []
        for request, row in self._rows.items():
            chunks.append(Chunk(request, row.written, 1, samples=not row.ended))
            row.written += 1
        return self._plan([], chunks, waiting)


class GrowingPlanner(_RowPlanner):
    """Plans one prompt at a time in a cache that grows by what each step writes.

    The pool is elastic: blocks of one slot, taken from the device with every token and returned
    when all samples of the prompt have ended. All rows of a cache grow together, so a row that
    ends early is still computed and written.

    Args:
        max_length: most slots of a row.
        rows: samples of a prompt generated concurrently.
    """

    def __init__(self, max_length: int, rows: int = 1) -> None:
        super().__init__(max_length * rows, 1)
        self._max_length = max_length

    def start(self, requests: Sequence[int], prompt_tokens: int, waiting: int = 0) -> StepPlan:
        """Prefill the samples of one prompt."""
        self._rows = {request: _Row(0) for request in requests}
        return self._grow(prompt_tokens, waiting)

    def decode(
        self, finished: Sequence[tuple[int, FinishReason]] = (), waiting: int = 0
    ) -> StepPlan:
        """Plan one more token for every row; rows in ``finished`` sample nothing.

        Raises:
            kvsim.core.blocks.OutOfBlocksError: a row would exceed the maximum length.
        """
        self._end(finished)
        return self._grow(1, waiting)

    def _grow(self, count: int, waiting: int) -> StepPlan:
        if any(row.written + count > self._max_length for row in self._rows.values()):
            raise OutOfBlocksError(f"a row would outgrow {self._max_length} slots")
        ops, chunks = [], []
        for request, row in self._rows.items():
            ops.append(BlockOp(OpKind.ALLOCATE, request, self._pool.allocate(request, count)))
            chunks.append(Chunk(request, row.written, count, samples=not row.ended))
            row.written += count
        return self._plan(ops, chunks, waiting)
