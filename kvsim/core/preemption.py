"""Preemption by recompute or swap, and swapping in.

    recompute   table [ 3 | 7 | 2 ]  ->  free          later: recomputed in any blocks
    swap        table [ 3 | 7 | 2 ]  ->  host [ 0 | 1 | 2 ]  ->  table [ 9 | 4 | 5 ]

The beams of a search are preempted together, and their shared blocks stay shared:

    beam 7      table [ 3 | 7 | 2 ]  ->  host [ 0 | 1 | 2 ]  ->  table [ 9 | 4 | 5 ]   swap in 9 4 5
    beam 9      table [ 3 | 7 | 6 ]  ->  host [ 0 | 1 | 3 ]  ->  table [ 9 | 4 | 8 ]   share 9 4
                                                                                       swap in 8
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from kvsim.core.blocks import BlockPool
from kvsim.core.draft import Draft, allocate, release_blocks
from kvsim.core.group import SequenceGroup
from kvsim.core.limits import SchedulerConfig
from kvsim.core.prefix import PrefixCache
from kvsim.core.request import Request
from kvsim.core.step import BlockOp, OpKind, PreemptionCause


class Preemption:
    """Preempts groups and owns the pool of host blocks."""

    def __init__(self, pool: BlockPool, cache: PrefixCache, config: SchedulerConfig) -> None:
        self.pool = pool
        self.cache = cache
        self.config = config
        count = config.host_blocks
        self.host = BlockPool(count, pool.block_size) if count else None

    def preempt(self, group: SequenceGroup, draft: Draft, by: int, needed: int) -> None:
        """Release all blocks of ``group``; swap if configured and possible, else recompute.

        Args:
            by: the request that needs ``needed`` blocks.
        """
        free = self.pool.num_free
        swap = self._can_swap(group)
        if not swap:
            group.record_origins(self.pool)
        hosts: dict[int, int] = {}
        for member in group.members:
            draft.remove_chunk(member.id)
            if not self.pool.table(member.id):
                continue  # a beam that was not recomputed yet
            member.preemptions += 1
            draft.preempted.append(member.id)
            draft.causes.append(PreemptionCause(by, needed, free, member.computed))
            if swap:
                taken = self._host_blocks(member, group, hosts)
                draft.ops.append(release_blocks(self.cache, member, OpKind.SWAP_OUT, taken))
                member.swapped = True
            else:
                draft.ops.append(release_blocks(self.cache, member))
                member.reached = max(member.reached, member.computed)
                member.computed = member.published = 0

    def swap_in(self, group: SequenceGroup, draft: Draft) -> None:
        """Swap the blocks of ``group`` in; enough must be free."""
        assert self.host is not None
        back: dict[int, int] = {}
        members = [member.id for member in group.members]
        for member in group.members:
            hosts = tuple(self.host.table(member.id))
            lead = _leading(hosts, back)
            if lead:
                leading = [back[block] for block in hosts[:lead]]
                shared = tuple(self.pool.share(member.id, leading, members))
                tokens = min(lead * self.pool.block_size, member.computed)
                draft.ops.append(BlockOp(OpKind.SHARE, member.id, shared, tokens=tokens))
            blocks = allocate(self.pool, member.id, len(hosts) - lead, draft)
            self.host.free(member.id)
            draft.ops.append(BlockOp(OpKind.SWAP_IN, member.id, blocks, hosts[lead:]))
            back.update(zip(hosts[lead:], blocks, strict=True))
            member.swapped = False

    def host_blocks(self, group: SequenceGroup) -> int:
        """Count the device blocks that swapping in ``group`` allocates."""
        assert self.host is not None
        return _distinct([self.host.table(member.id) for member in group.members])

    def _can_swap(self, group: SequenceGroup) -> bool:
        if self.config.preemption != "swap" or self.host is None or not group.members[0].computed:
            return False
        if len(group.members) > 1 and not group.is_caught_up:
            return False  # some beams have no blocks yet
        tables = [self.pool.table(member.id) for member in group.members]
        return _distinct(tables) <= self.host.num_free

    def _host_blocks(
        self, member: Request, group: SequenceGroup, hosts: dict[int, int]
    ) -> tuple[int, ...]:
        """Allocate host blocks for ``member``; ``hosts`` maps siblings' device blocks to host."""
        assert self.host is not None
        table = self.pool.table(member.id)
        lead = _leading(table, hosts)
        members = [each.id for each in group.members]
        self.host.share(member.id, [hosts[block] for block in table[:lead]], members)
        new = self.host.allocate(member.id, len(table) - lead)
        hosts.update(zip(table[lead:], new, strict=True))
        return tuple(self.host.table(member.id))


def _leading(table: Sequence[int], known: Container[int]) -> int:
    return next((i for i, block in enumerate(table) if block not in known), len(table))


def _distinct(tables: Sequence[Sequence[int]]) -> int:
    """Count the blocks of all tables if each shares its known leading blocks."""
    counted: set[int] = set()
    count = 0
    for table in tables:
        count += len(table) - _leading(table, counted)
        counted.update(table)
    return count
