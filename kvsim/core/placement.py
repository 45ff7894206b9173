"""Allocates the blocks that the next chunks of requests write.

admission    share cached blocks, or swap in from the host
each step    copy a shared block before it is written, then allocate new ones
catch-up     the beams of a preempted search are recomputed one after another:

    beam 7   computed 0 ............. known - 1    first, in chunks within the budget
    beam 9   shares beam 7's leading blocks, then computes its own part
    all      the newest token of each, in one step
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvsim.core.blocks import BlockPool, blocks_needed
from kvsim.core.draft import Draft, missing_blocks, new_blocks, next_chunk, take_blocks
from kvsim.core.group import SequenceGroup
from kvsim.core.preemption import Preemption
from kvsim.core.prefix import PrefixCache
from kvsim.core.request import Request
from kvsim.core.step import BlockOp, Chunk, OpKind, Wait, WaitReason

MakeRoom = Callable[[SequenceGroup, Sequence[Chunk], Draft], bool]


class Placement:
    """Admits groups and plans their chunks, within free blocks and the token budget."""

    def __init__(self, pool: BlockPool, cache: PrefixCache, preemption: Preemption) -> None:
        self.pool = pool
        self.cache = cache
        self.preemption = preemption

    def admit(self, group: SequenceGroup, draft: Draft, reserve: int) -> Wait | None:
        """Allocate the first blocks of a waiting group, or return why it waits.

        Args:
            reserve: free blocks that it must leave.
        """
        if group.swapped:
            return self._swap_in(group, draft, reserve)
        return self._start(group, draft, reserve)

    def advance(self, group: SequenceGroup, draft: Draft, make_room: MakeRoom) -> bool:
        """Plan the next chunks of a running group; return False if it was preempted itself.

        Args:
            make_room: preempts until chunks fit; returns False if their group was preempted.
        """
        if len(group.members) == 1:
            return self._advance_alone(group, draft, make_room)
        if not group.is_caught_up:
            return self._catch_up(group, draft, make_room)
        chunks = group.chunks(draft.budget, draft.allowance)
        if not make_room(group, chunks, draft):
            return False
        for member, chunk in zip(group.members, chunks, strict=False):
            take_blocks(self.pool, chunk, draft)
            self._plan(member, chunk, draft)
        return True

    def _advance_alone(self, group: SequenceGroup, draft: Draft, make_room: MakeRoom) -> bool:
        request, pool = group.members[0], self.pool
        prefills = request.is_prefill_chunk
        if draft.defer_prefills and prefills:
            return True
        chunk = next_chunk(request, draft.allowance)
        # Nothing is copied where nothing is shared, and most chunks need no new block.
        if pool.extra_references or new_blocks(pool, chunk) > 0:
            if not make_room(group, (chunk,), draft):
                return False
            take_blocks(pool, chunk, draft)
        draft.prefills |= prefills
        draft.add_chunk(chunk)
        self.cache.publish(request, chunk.start + chunk.count, draft.step)
        return True

    def _start(self, group: SequenceGroup, draft: Draft, reserve: int) -> Wait | None:
        leader = group.members[0]
        hits = self.cache.find(leader)
        size = self.pool.block_size
        start = len(hits) * size
        prefills = start < leader.known - 1
        if draft.defer_prefills and prefills:
            return Wait(leader.id, WaitReason.INTERVAL)
        first = blocks_needed(start + min(leader.known - start, draft.allowance), size) - len(hits)
        needed = first
        if len(group.members) > 1 or self.preemption.config.admission == "full":
            needed = group.known_blocks(size) - len(hits)
        free = self.pool.num_free - self.pool.count_cached(hits)
        if needed + reserve > free:
            reason = WaitReason.PROMPT if first + reserve <= free else WaitReason.BLOCKS
            return _lack(leader.id, reason, needed, free)
        self.cache.count(leader, hits, draft.step)
        self._begin_with(leader, hits, draft)
        draft.prefills |= prefills
        return None

    def _swap_in(self, group: SequenceGroup, draft: Draft, reserve: int) -> Wait | None:
        host = self.preemption.host
        assert host is not None
        chunks = group.chunks(draft.budget, draft.allowance)
        needed = self.preemption.host_blocks(group) + missing_blocks(host, chunks)
        leader, free = group.members[0].id, self.pool.num_free
        if not chunks:
            return Wait(leader, WaitReason.TOKENS)
        if needed + reserve > free:
            return _lack(leader, WaitReason.BLOCKS, needed, free)
        self.preemption.swap_in(group, draft)
        return None

    def _catch_up(self, group: SequenceGroup, draft: Draft, make_room: MakeRoom) -> bool:
        """Recompute the beams, except the newest token of each."""
        for member in group.members:
            if not draft.budget:
                break
            if not self.pool.table(member.id):
                self._rejoin(member, group, draft)
            count = min(member.known - 1 - member.computed, draft.allowance)
            if not count:
                continue
            chunk = Chunk(member.id, member.computed, count, samples=False)
            if not make_room(group, (chunk,), draft):
                return False
            take_blocks(self.pool, chunk, draft)
            self._plan(member, chunk, draft)
        return True

    def _rejoin(self, member: Request, group: SequenceGroup, draft: Draft) -> None:
        """Share the common blocks of ``member`` and a sibling, and further cached ones."""
        sibling, common = group.origins.get(member.id, (member.id, 0))
        cached = self.cache.find_written(member, draft.step)[common:]
        self.cache.count(member, cached, draft.step)
        blocks = [*self.pool.table(sibling)[:common], *cached]
        self._begin_with(member, blocks, draft, (sibling,))

    def _begin_with(
        self, request: Request, blocks: Sequence[int], draft: Draft, owners: Sequence[int] = ()
    ) -> None:
        tokens = len(blocks) * self.pool.block_size
        if blocks:
            self.pool.share(request.id, blocks, owners)
            if draft.list_ops:
                draft.ops.append(BlockOp(OpKind.SHARE, request.id, tuple(blocks), tokens=tokens))
        request.computed, request.published = tokens, len(blocks)

    def _plan(self, request: Request, chunk: Chunk, draft: Draft) -> None:
        """Plan ``chunk``, whose blocks are allocated."""
        draft.add_chunk(chunk)
        self.cache.publish(request, chunk.start + chunk.count, draft.step)


def _lack(request: int, reason: WaitReason, needed: int, free: int) -> Wait:
    """Blocks are missing; if not, only the watermark keeps them."""
    return Wait(request, reason if needed > free else WaitReason.WATERMARK, needed, free)
