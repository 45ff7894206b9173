"""Step plans of another engine's scheduler, from its block tables before and after a decision.

    tables before     1: [4, 7]   2: [5]      3: [9]
    tables now        1: [4, 7, 2]            3: [9]      4: [5, 6]
    plan              2 finished: free [5]; 1: allocate [2]; 4: allocate [5, 6]

Only the tables are compared. The engine's messages to its workers differ between versions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from kvsim.core.blocks import blocks_needed
from kvsim.core.step import BlockOp, Chunk, Finish, FinishReason, OpKind, StepPlan

Tables = Mapping[int, Sequence[int]]


class ScheduleTraceError(Exception):
    """A table changed by something other than growth or release."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision of the observed scheduler.

    Attributes:
        tables: blocks of each request that has some, in the scheduler's order.
        preempted: requests that lost their blocks in this decision.
        chunks: tokens that the step computes. The chunk of a newly admitted request starts
            behind its prefix hit.
        waiting: requests left in the queue.
        found: prefix hits, in tokens, of newly admitted requests without a chunk.
        evicted: cached blocks without an owner that were evicted since the last decision.
        parents: the parent of each request forked since then. Blocks that a child does not
            share with its parent were copied.
    """

    tables: Tables
    preempted: Collection[int]
    chunks: Sequence[Chunk]
    waiting: int
    found: Mapping[int, int] = field(default_factory=dict)
    evicted: Collection[int] = ()
    parents: Mapping[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class ScheduleTrace:
    """Converts decisions to plans.

    ``keeps`` tells whether a freed block keeps its content; None: no prefix cache.
    """

    block_size: int
    keeps: Callable[[int], bool] | None = None
    step: int = 0
    _tables: dict[int, tuple[int, ...]] = field(default_factory=dict)
    _cached: set[int] = field(default_factory=set)
    _finished: list[Finish] = field(default_factory=list)

    def finished(self, request: int, reason: FinishReason) -> None:
        """Record a request that ended after the last decision."""
        self._finished.append(Finish(request, reason))

    def plan(self, decision: Decision) -> StepPlan:
        """Return the plan of the next step.

        Raises:
            ScheduleTraceError: a table changed by something other than growth or release.
        """
        ended = {finish.request for finish in self._finished}
        gone = ended.union(decision.preempted)
        stay = self._tables.keys() - gone
        hits = {c.request: c.start for c in decision.chunks if c.request not in stay and c.start}
        hits |= decision.found
        if gone.intersection(decision.tables):
            raise ScheduleTraceError("a request lost its blocks and was given others at once")
        lost = stay - decision.tables.keys()
        if lost:
            raise ScheduleTraceError(f"request {min(lost)} lost its blocks and has not ended")
        found = {request: hits[request] for request in hits.keys() - decision.parents.keys()}
        merges = self._merges(decision.tables, stay)
        ops = self._free(decision, ended, found, merges)
        ops += self._merge(merges) + self._evict(decision) + self._fork(decision, hits)
        ops += self._free(decision, decision.preempted, found, ())
        for request, table in decision.tables.items():
            ops += self._grow(request, tuple(table), hits.get(request, 0))
        plan = StepPlan(
            step=self.step,
            ops=tuple(ops),
            chunks=tuple(decision.chunks),
            preempted=tuple(decision.preempted),
            finished=tuple(self._finished),
            waiting=decision.waiting,
        )
        self.step += 1
        self._finished = []
        return plan

    def release(self) -> StepPlan:
        """Return the plan in which the last requests free their blocks."""
        return self.plan(Decision({}, (), (), 0))

    def _free(
        self,
        decision: Decision,
        gone: Collection[int],
        hits: Mapping[int, int],
        merges: Sequence[BlockOp],
    ) -> list[BlockOp]:
        shared = {
            block
            for request, tokens in hits.items()
            for block in decision.tables[request][: blocks_needed(tokens, self.block_size)]
        }.union(*(merge.blocks for merge in merges))
        # Reallocated in this decision: `keeps` refers to the new owner's content.
        taken = {block for table in decision.tables.values() for block in table} - shared
        ops = []
        for request in list(self._tables):
            if request not in gone:
                continue
            table = self._tables.pop(request)
            held = {block for blocks in self._tables.values() for block in blocks}
            kept = tuple(
                block
                for block in table
                if block not in held
                and block not in taken
                and (block in shared or (self.keeps is not None and self.keeps(block)))
            )
            self._cached.update(kept)
            ops.append(BlockOp(OpKind.FREE, request, table, cached=kept))
        return ops

    def _merges(self, tables: Tables, stay: Collection[int]) -> list[BlockOp]:
        """Return the MERGE operations: table entries replaced by an equal cached block."""
        ops = []
        for request in stay:
            before = self._tables[request]
            now = tuple(tables.get(request, before)[: len(before)])
            if now == before:
                continue
            changed = [pair for pair in zip(before, now, strict=False) if pair[0] != pair[1]]
            known = self._cached.union(*self._tables.values())
            if not changed or not known.issuperset(new for _, new in changed):
                raise ScheduleTraceError(f"blocks of request {request} were replaced")
            old, new = zip(*changed, strict=True)
            ops.append(BlockOp(OpKind.MERGE, request, new, old))
        return ops

    def _merge(self, merges: list[BlockOp]) -> list[BlockOp]:
        for op in merges:
            assert op.request is not None
            new = dict(zip(op.sources, op.blocks, strict=True))
            table = self._tables[op.request]
            self._tables[op.request] = tuple(new.get(block, block) for block in table)
            self._cached.difference_update(op.blocks)
        return merges

    def _fork(self, decision: Decision, hits: Mapping[int, int]) -> list[BlockOp]:
        ops = []
        for child, parent in decision.parents.items():
            tokens = hits.get(child, 0)
            own = tuple(decision.tables[child][: blocks_needed(tokens, self.block_size)])
            known = self._cached.union(*self._tables.values())
            pairs = zip(self._tables[parent], own, strict=False)
            inherited = tuple(new if new in known else old for old, new in pairs)
            copied = [pair for pair in zip(inherited, own, strict=True) if pair[0] != pair[1]]
            ops.append(BlockOp(OpKind.SHARE, child, inherited, tokens=tokens))
            if copied:
                old, new = zip(*copied, strict=True)
                ops.append(BlockOp(OpKind.COPY, child, new, old))
            self._cached.difference_update(own)
            self._tables[child] = own
        return ops

    def _evict(self, decision: Decision) -> list[BlockOp]:
        lost = tuple(block for block in decision.evicted if block in self._cached)
        self._cached.difference_update(lost)
        return [BlockOp(OpKind.EVICT, None, lost)] if lost else []

    def _grow(self, request: int, table: tuple[int, ...], computed: int) -> list[BlockOp]:
        before = self._tables.get(request)
        ops = []
        start = len(before or ())
        if before is not None and table[:start] != before:
            raise ScheduleTraceError(f"blocks of request {request} were replaced")
        if before is None and computed:
            start = blocks_needed(computed, self.block_size)
            ops.append(BlockOp(OpKind.SHARE, request, table[:start], tokens=computed))
            self._cached.difference_update(table[:start])
        new = table[start:]
        evicted = tuple(block for block in new if block in self._cached)
        if evicted:
            ops.append(BlockOp(OpKind.EVICT, None, evicted))
            self._cached.difference_update(evicted)
        if new:
            ops.append(BlockOp(OpKind.ALLOCATE, request, new))
        self._tables[request] = table
        return ops
