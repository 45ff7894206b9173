"""The state of every slot of a KV pool, derived from step plans.

    reserved   all slots taken from the device
    allocated  slots given to requests:  live + padding + finished + unwritten + rounding
    live       slots holding K and V that an unfinished request will attend to
    wasted     allocated - live

Each slot is in exactly one :class:`SlotState`, the first that applies, and the states sum to
``reserved`` after every step. :class:`Ledger` updates the sums incrementally;
tests count them again, slot by slot.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from kvsim.accounting.slots import PoolShape, SlotCounts, SlotState, count_slots
from kvsim.core.step import RELEASING_OPS, BlockOp, Chunk, FinishReason, OpKind, StepPlan

__all__ = [
    "Ledger",
    "Owner",
    "PoolShape",
    "ReplayError",
    "SlotCounts",
    "SlotState",
]


class ReplayError(Exception):
    """A plan contradicts earlier ones: the log is damaged or the scheduler is wrong."""


@dataclass(slots=True)
class Owner:
    """What one request holds: its block table, padding slots in front, and written positions."""

    table: list[int] = field(default_factory=list)
    padding: int = 0
    written: int = 0
    finished: bool = False


class Ledger:
    """Applies plans in order and keeps the slot counts after each.

    Keeps the contribution of each block to the sums and updates it where it may change:

        block     owners      padding   filled   alive
        3         {7, 9, 4}   0         16       yes      9 ends: 7 has filled it too, no change
        8         {7}         0         5        yes      7 writes one token: 6 filled, live + 1

    A step takes time proportional to its changes, not to the number of owners.
    """

    def __init__(self, shape: PoolShape) -> None:
        self.shape = shape
        self.owners: dict[int, Owner] = {}
        # Of blocks that were ever used: the configured pool may be arbitrarily large.
        self._block_owners: defaultdict[int, set[int]] = defaultdict(set)
        # Sharing is sharing of a prefix, so a block has one logical index in all tables.
        self._logical: defaultdict[int, int] = defaultdict(int)
        # Over all owners: most padding slots, most slots written with padding, any unfinished.
        self._padding: defaultdict[int, int] = defaultdict(int)
        self._filled: defaultdict[int, int] = defaultdict(int)
        self._alive: defaultdict[int, bool] = defaultdict(bool)
        # Requests whose blocks are in host memory; their tables are empty.
        self.swapped: dict[int, Owner] = {}
        # Blocks with content and without an owner.
        self.cached: set[int] = set()
        # Blocks with more than one owner.
        self.shared_blocks = 0
        self._sums = dict.fromkeys(SlotState, 0)
        self._written = 0  # written slots of owned blocks
        # Distinct blocks in the tables, and table entries: more if blocks are shared.
        self.owned_blocks = 0
        self.table_entries = 0
        self.last_step = -1

    def apply(self, plan: StepPlan) -> SlotCounts:
        """Apply the facts of ``plan`` in order and return the slot counts.

        Raises:
            ReplayError: the plan contradicts the state before it.
        """
        if plan.step <= self.last_step:
            raise ReplayError(f"step {plan.step} after step {self.last_step}")
        self.last_step = plan.step
        for finish in plan.finished:
            if finish.reason is not FinishReason.REFUSED:
                self._mark_finished(finish.request)
        for op in plan.ops:
            self._apply_op(op)
        for request in plan.preempted:
            self._require(request not in self.owners, f"request {request} preempted, keeps blocks")
            gave = any(op.request == request and op.kind in RELEASING_OPS for op in plan.ops)
            self._require(gave, f"request {request} preempted, holds nothing")
        for chunk in plan.chunks:
            self._apply_chunk(chunk)
        return self.counts()

    def counts(self) -> SlotCounts:
        """Return the slots in each state."""
        return count_slots(self.shape, self._sums, self.owned_blocks + len(self.cached))

    @property
    def written_slots(self) -> int:
        """Written slots: the slots of poisoned tensors that must not be NaN."""
        return self._written + len(self.cached) * self.shape.block_size

    def tables(self) -> dict[int, tuple[int, ...]]:
        """Return the block table of each request that has blocks."""
        return {request: tuple(h.table) for request, h in self.owners.items() if h.table}

    def _apply_op(self, op: BlockOp) -> None:
        if op.blocks:
            for block in (min(op.blocks), max(op.blocks)):
                self._require(0 <= block < self.shape.blocks, f"no block {block} in the pool")
        _APPLY[op.kind](self, op)

    def _allocate(self, op: BlockOp) -> None:
        request = self._request_of(op)
        owner = self.owners.setdefault(request, Owner())
        # In a growing cache, all rows of a batch grow together, ended ones too.
        may = self.shape.elastic or not owner.finished
        self._require(may, f"request {request} has ended and is given blocks")
        for block in op.blocks:
            free = not self._block_owners[block] and block not in self.cached
            self._require(free, f"block {block} is not free")
            self._append(request, owner, block)

    def _share(self, op: BlockOp) -> None:
        request = self._request_of(op)
        self._require(request not in self.owners, f"request {request} holds blocks already")
        owner = self.owners[request] = Owner(written=op.tokens)
        reach = len(op.blocks) * self.shape.block_size
        self._require(op.tokens <= reach, f"request {request} shares more than blocks hold")
        for block in op.blocks:
            if block in self.cached:
                self._uncache(block)
            elif not self._block_owners[block]:
                raise ReplayError(f"block {block} holds nothing to share")
            self._append(request, owner, block)

    def _copy(self, op: BlockOp) -> None:
        request, owner = self._held(op)
        same = len(op.blocks) == len(op.sources)
        self._require(same, f"request {request} gets not as many blocks as it copies")
        for old, new in zip(op.sources, op.blocks, strict=True):
            self._require(
                request in self._block_owners[old], f"request {request} copies another's block"
            )
            free = not self._block_owners[new] and new not in self.cached
            self._require(free, f"block {new} is not free")
            self._replace(request, owner, old, new)

    def _merge(self, op: BlockOp) -> None:
        request, owner = self._held(op)
        same = len(op.blocks) == len(op.sources)
        self._require(same, f"request {request} gets not as many blocks as it gives up")
        for old, new in zip(op.sources, op.blocks, strict=True):
            self._require(self._block_owners[old] == {request}, f"block {old} is not its own alone")
            if new in self.cached:
                self._uncache(new)
            elif self._filled[new] < self.shape.block_size:
                raise ReplayError(f"block {new} is not full and takes another's place")
            self._replace(request, owner, old, new)

    def _replace(self, request: int, owner: Owner, old: int, new: int) -> None:
        logical = self._logical[old]
        self._disown(request, old)
        owner.table[logical] = new
        self._own(request, new, logical)

    def _evict(self, op: BlockOp) -> None:
        for block in op.blocks:
            self._require(block in self.cached, f"block {block} is not cached")
            self._uncache(block)

    def _free(self, op: BlockOp) -> None:
        request, owner = self._held(op)
        self._require(owner.table == list(op.blocks), f"request {request} frees other blocks")
        size = self.shape.block_size
        kept = frozenset(op.cached)
        for block in op.blocks:
            full = self._filled[block] == size
            self._disown(request, block)
            if block in kept:
                ownerless = not self._block_owners[block]
                self._require(full and ownerless, f"block {block} cannot stay cached")
                self.cached.add(block)
                self._sums[SlotState.CACHED] += size
        del self.owners[request]

    def _swap_out(self, op: BlockOp) -> None:
        request, owner = self._held(op)
        self._free(op)
        owner.table = []
        self.swapped[request] = owner

    def _swap_in(self, op: BlockOp) -> None:
        request = self._request_of(op)
        owner = self.swapped.pop(request, None)
        if owner is None:
            raise ReplayError(f"request {request} comes back and was not swapped out")
        self._allocate(op)
        back = self.owners[request]
        back.written, back.padding = owner.written, owner.padding
        for block in op.blocks:
            self._add(back, block)

    def _append(self, request: int, owner: Owner, block: int) -> None:
        owner.table.append(block)
        self._own(request, block, len(owner.table) - 1)

    def _own(self, request: int, block: int, logical: int) -> None:
        owners = self._block_owners[block]
        owners.add(request)
        self.table_entries += 1
        if len(owners) == 1:
            self.owned_blocks += 1
            self._logical[block] = logical
            self._sums[SlotState.FINISHED] += self.shape.block_size  # no live owner yet; see _set
        elif self._logical[block] != logical:
            raise ReplayError(f"block {block} has two places in sequences")
        else:
            self.shared_blocks += len(owners) == 2
        self._add(self.owners[request], block)

    def _disown(self, request: int, block: int) -> None:
        owners = self._block_owners[block]
        owners.discard(request)
        self.table_entries -= 1
        self.shared_blocks -= len(owners) == 1
        if not owners:
            self._set(block, 0, 0, False)
            self._sums[SlotState.FINISHED] -= self.shape.block_size
            self.owned_blocks -= 1
        elif not self._has_full_owner(block):
            self._set(block, *self._fill(block))

    def _has_full_owner(self, block: int) -> bool:
        """Whether another owner alone keeps the block fully live."""
        if self._padding[block]:
            return False
        reach = (self._logical[block] + 1) * self.shape.block_size
        owners = self.owners
        for request in self._block_owners[block]:
            owner = owners[request]
            if not owner.finished and not owner.padding and owner.written >= reach:
                return True
        return False

    def _uncache(self, block: int) -> None:
        self.cached.discard(block)
        self._sums[SlotState.CACHED] -= self.shape.block_size

    def _owner_of(self, request: int) -> Owner:
        owner = self.owners.get(request)
        if owner is None:
            raise ReplayError(f"request {request} holds nothing")
        return owner

    def _apply_chunk(self, chunk: Chunk) -> None:
        owner = self._owner_of(chunk.request)
        if owner.written != chunk.start:
            raise ReplayError(f"request {chunk.request} skips positions")
        if chunk.padding and chunk.start:
            raise ReplayError(f"request {chunk.request} gets fillers behind its first tokens")
        size = self.shape.block_size
        padding = owner.padding + chunk.padding
        end = padding + chunk.start + chunk.count
        if end > len(owner.table) * size:
            raise ReplayError(f"request {chunk.request} outgrows its blocks")
        first = (owner.padding + owner.written) // size
        touched = owner.table[first : -(-end // size)]
        owner.padding = padding
        owner.written = chunk.start + chunk.count
        for block in touched:
            self._add(owner, block)

    def _mark_finished(self, request: int) -> None:
        owner = self.owners.get(request)
        if owner is None:
            self.swapped.pop(request, None)
            return  # ended while waiting: no blocks on the device
        owner.finished = True
        owners = self.owners
        for block in owner.table:
            for request_id in self._block_owners[block]:
                if not owners[request_id].finished:
                    break
            else:
                self._set(block, self._padding[block], self._filled[block], False)

    def _add(self, owner: Owner, block: int) -> None:
        """Add what a new or writing owner sees of the block to what the others see."""
        size, filled_before = self.shape.block_size, self._filled[block]
        before = self._logical[block] * size
        if self._alive[block] and not owner.padding:  # the common case: one more token
            more = _clamp(owner.written - before, size) - filled_before
            if more > 0:
                self._sums[SlotState.LIVE] += more
                self._sums[SlotState.UNWRITTEN] -= more
                self._written += more
                self._filled[block] = filled_before + more
            return
        padding = max(self._padding[block], _clamp(owner.padding - before, size))
        filled = max(filled_before, _clamp(owner.padding + owner.written - before, size))
        self._set(block, padding, filled, self._alive[block] or not owner.finished)

    def _set(self, block: int, padding: int, filled: int, alive: bool) -> None:
        """Update the contribution of an owned block to the sums.

        Without an unfinished owner, all slots but the padding count as finished.
        """
        was = self._padding[block], self._filled[block], self._alive[block]
        if was == (padding, filled, alive):
            return
        for sign, (pads, full, lives) in ((-1, was), (+1, (padding, filled, alive))):
            self._sums[SlotState.PADDING] += sign * pads
            if lives:
                self._sums[SlotState.LIVE] += sign * (full - pads)
                self._sums[SlotState.UNWRITTEN] += sign * (self.shape.block_size - full)
            else:
                self._sums[SlotState.FINISHED] += sign * (self.shape.block_size - pads)
        self._written += filled - self._filled[block]
        self._padding[block], self._filled[block], self._alive[block] = padding, filled, alive

    def _fill(self, block: int) -> tuple[int, int, bool]:
        """Return (padding slots, written slots with padding, has an unfinished owner)."""
        size = self.shape.block_size
        before = self._logical[block] * size
        padding = filled = 0
        alive = False
        for request in self._block_owners[block]:
            owner = self.owners[request]
            padding = max(padding, _clamp(owner.padding - before, size))
            filled = max(filled, _clamp(owner.padding + owner.written - before, size))
            alive = alive or not owner.finished
        return padding, filled, alive

    def _request_of(self, op: BlockOp) -> int:
        if op.request is None:
            raise ReplayError(f"{op.kind} names no request")
        return op.request

    def _held(self, op: BlockOp) -> tuple[int, Owner]:
        """Return the request of ``op`` and what it holds."""
        request = self._request_of(op)
        return request, self._owner_of(request)

    @staticmethod
    def _require(condition: bool, message: str) -> None:
        if not condition:
            raise ReplayError(message)


def _clamp(value: int, size: int) -> int:
    return min(max(value, 0), size)


_APPLY = {
    OpKind.ALLOCATE: Ledger._allocate,
    OpKind.SHARE: Ledger._share,
    OpKind.COPY: Ledger._copy,
    OpKind.MERGE: Ledger._merge,
    OpKind.EVICT: Ledger._evict,
    OpKind.FREE: Ledger._free,
    OpKind.SWAP_OUT: Ledger._swap_out,
    OpKind.SWAP_IN: Ledger._swap_in,
}
