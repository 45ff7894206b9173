"""Contiguous policies: what a cache without paging hands out, written as the same step plans.

A preallocated cache is a pool whose block is one slab of the maximum length:

    slab 0   [pad pad pad | prompt ... | generated ... | never written .... ]
    slab 1   [prompt ................. | generated ... | never written .... ]

so its facts need no format of their own, and the same ledger counts them.
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


class _Rows:
    """Rows of a cache that step together, each with its blocks: what both planners have."""

    def __init__(self, blocks: int, block_size: int) -> None:
        self._pool = BlockPool(blocks, block_size)
        self._rows: dict[int, _Row] = {}
        self._finished: list[Finish] = []
        self._step = 0

    def tables(self) -> dict[int, list[int]]:
        """Blocks of every request that holds some: its slab, or its slots."""
        return {request: list(self._pool.table(request)) for request in self._pool.owners}

    def written(self) -> dict[int, int]:
        """Positions written for every request that still runs, fillers not counted."""
        return {request: row.written for request, row in self._rows.items() if not row.ended}

    def _end(self, finished: Sequence[tuple[int, FinishReason]]) -> None:
        for request, reason in finished:
            self._rows[request].ended = True
            self._finished.append(Finish(request, reason))

    def _plan(self, ops: Sequence[BlockOp], chunks: Sequence[Chunk], waiting: int) -> StepPlan:
        finished, self._finished = tuple(self._finished), []
        plan = StepPlan(self._step, tuple(ops), tuple(chunks), (), finished, waiting)
        self._step += 1
        return plan


class StaticBatchPlanner(_Rows):
    """Plans for batches that start together, step together and are released together.

    Each request takes one slab. Shorter prompts are padded on the left to the longest one, as
    Transformers does for batched generation. A request that ends early keeps its slab until
    :meth:`release`, and its row is computed (and written) with the others, for nothing. With
    batches of one this is one request after another.

    Args:
        slabs: number of slabs that were reserved.
        max_length: slots of a slab.
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
        """One more position for every row; those that have ``finished`` sample nothing."""
        self._end(finished)
        chunks = []
        for request, row in self._rows.items():
            chunks.append(Chunk(request, row.written, 1, samples=not row.ended))
            row.written += 1
        return self._plan([], chunks, waiting)

    def release(
        self, finished: Sequence[tuple[int, FinishReason]] = (), waiting: int = 0
    ) -> StepPlan:
        """End the rows that are left and give every slab back."""
        self._end(finished)
        # Last slab first: the pool hands out first what came back last, so that the next batch
        # begins with the first slab, as a cache tensor's rows do.
        owners = reversed(self._pool.owners)
        ops = [BlockOp(OpKind.FREE, r, self._pool.free(r)) for r in owners]
        self._rows = {}
        return self._plan(ops, [], waiting)


class GrowingPlanner(_Rows):
    """Plans for one prompt at a time in a cache that grows by what each step writes.

    The pool is elastic: blocks of one slot, taken from the device with every token and given
    back when the prompt's samples have ended. All rows of a cache grow together, so one that
    ends early goes on being computed and written for nothing.

    Args:
        max_length: slots that a row may grow to.
        rows: samples of a prompt that are generated side by side.
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
        """One more token for every row; those that have ``finished`` sample nothing.

        Raises:
            kvsim.core.blocks.OutOfBlocksError: a row would outgrow the maximum length.
        """
        self._end(finished)
        return self._grow(1, waiting)

    def release(
        self, finished: Sequence[tuple[int, FinishReason]] = (), waiting: int = 0
    ) -> StepPlan:
        """End the rows that are left; their memory goes back to the device."""
        self._end(finished)
        ops = [BlockOp(OpKind.FREE, r, self._pool.free(r)) for r in self._pool.owners]
        self._rows = {}
        return self._plan(ops, [], waiting)

    def _grow(self, count: int, waiting: int) -> StepPlan:
        if any(row.written + count > self._max_length for row in self._rows.values()):
            raise OutOfBlocksError(f"a row would outgrow {self._max_length} slots")
        ops, chunks = [], []
        for request, row in self._rows.items():
            ops.append(BlockOp(OpKind.ALLOCATE, request, self._pool.allocate(request, count)))
            chunks.append(Chunk(request, row.written, count, samples=not row.ended))
            row.written += count
        return self._plan(ops, chunks, waiting)
