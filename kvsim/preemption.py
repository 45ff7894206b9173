"""How a request loses its blocks and gets them back.

recompute   table [ 3 | 7 | 2 ]  ->  free          later: computed anew, in any blocks
swap        table [ 3 | 7 | 2 ]  ->  host [ 0 | 1 | 2 ]  ->  table [ 9 | 4 | 5 ]
"""

from __future__ import annotations

from kvsim.blocks import BlockPool
from kvsim.draft import Draft, allocate
from kvsim.limits import SchedulerConfig
from kvsim.prefix_cache import PrefixCache
from kvsim.request import Request
from kvsim.step import BlockOp, OpKind


class Preemption:
    """Takes blocks away from requests, and owns the host blocks that keep their content."""

    def __init__(self, pool: BlockPool, cache: PrefixCache, config: SchedulerConfig) -> None:
        self.pool = pool
        self.cache = cache
        self.config = config
        count = config.host_blocks
        self.host = BlockPool(count, pool.block_size) if count else None

    def preempt(self, request: Request, draft: Draft) -> None:
        """Take all blocks of ``request``, in the way the configuration says where possible."""
        draft.withdraw(request.id)
        request.preemptions += 1
        draft.preempted.append(request.id)
        if self._can_swap(request):
            assert self.host is not None
            hosts = self.host.allocate(request.id, len(self.pool.table(request.id)))
            draft.ops.append(self.give_back(request, OpKind.SWAP_OUT, hosts))
            request.swapped = True
        else:
            draft.ops.append(self.give_back(request))
            request.computed = request.published = 0

    def swap_in(self, request: Request, draft: Draft) -> None:
        """Bring the blocks of ``request`` back; there is room."""
        assert self.host is not None
        blocks = allocate(self.pool, request.id, len(self.host.table(request.id)), draft)
        sources = self.host.free(request.id)
        draft.ops.append(BlockOp(OpKind.SWAP_IN, request.id, blocks, sources))
        request.swapped = False

    def give_back(
        self, request: Request, kind: OpKind = OpKind.FREE, hosts: tuple[int, ...] = ()
    ) -> BlockOp:
        """Free the blocks of ``request``; what it published and has not written is retracted."""
        self.cache.retract_unwritten(request)
        blocks = self.pool.free(request.id)
        kept = tuple(block for block in blocks if self.pool.is_cached(block))
        return BlockOp(kind, request.id, blocks, hosts, kept)

    def _can_swap(self, request: Request) -> bool:
        if self.config.preemption != "swap" or self.host is None or not request.computed:
            return False
        return len(self.pool.table(request.id)) <= self.host.num_free
