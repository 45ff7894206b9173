"""Where every slot of a KV pool stands, derived from the logged facts.

    reserved   all slots taken from the device
    allocated  of those, handed to requests:  live + padding + finished + unwritten + rounding
    live       of those, holding K and V that an unfinished request will attend to
    wasted     allocated - live

Each slot is in exactly one :class:`SlotState`, the first that fits, and the states sum to
``reserved`` after every step. :class:`Ledger` keeps the sums while plans are applied;
:func:`recount` derives them again from the tables, slot by slot, as a witness.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from kvsim.step import BlockOp, Chunk, FinishReason, OpKind, StepPlan


class SlotState(StrEnum):
    """States of a slot, in order of precedence."""

    LIVE = "live"
    CACHED = "cached"
    PADDING = "padding"
    FINISHED = "finished"
    UNWRITTEN = "unwritten"
    ROUNDING = "rounding"
    HOLE = "hole"
    ENGINE = "engine"
    WATERMARK = "watermark"
    FREE = "free"


ALLOCATED_STATES = (
    SlotState.LIVE,
    SlotState.PADDING,
    SlotState.FINISHED,
    SlotState.UNWRITTEN,
    SlotState.ROUNDING,
)


class ReplayError(Exception):
    """A plan contradicts what came before it: the log is damaged or the scheduler is wrong."""


@dataclass(frozen=True, slots=True)
class PoolShape:
    """A pool of slots for one arm.

    Attributes:
        blocks: number of blocks; for an elastic pool, the most that it may grow to.
        block_size: slots in a block. A contiguous slab is one block of the maximum length.
        slot_bytes: bytes of K and V of one token over all layers.
        watermark_blocks: free blocks that admission holds back.
        elastic: memory is taken from the device as it is handed out and returned when freed
            (a growing cache), so reserved equals allocated.
    """

    blocks: int
    block_size: int
    slot_bytes: int
    watermark_blocks: int = 0
    elastic: bool = False

    @property
    def slots(self) -> int:
        """All slots of the pool."""
        return self.blocks * self.block_size

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return self.block_size * self.slot_bytes


@dataclass(frozen=True, slots=True)
class SlotCounts:
    """Slots in each state at one moment; states that are absent count no slot."""

    states: dict[SlotState, int]

    def __getitem__(self, state: SlotState) -> int:
        return self.states.get(state, 0)

    @property
    def reserved(self) -> int:
        """All slots."""
        return sum(self.states.values())

    @property
    def allocated(self) -> int:
        """Slots handed to requests."""
        return sum(self[state] for state in ALLOCATED_STATES)

    @property
    def live(self) -> int:
        """Slots that an unfinished request will attend to."""
        return self[SlotState.LIVE]

    @property
    def wasted(self) -> int:
        """Handed out, but not live."""
        return self.allocated - self.live


@dataclass(slots=True)
class Holder:
    """What one request holds: its table, filler slots in front, and positions written."""

    table: list[int] = field(default_factory=list)
    padding: int = 0
    written: int = 0
    finished: bool = False


class Ledger:
    """Applies plans one by one and knows the state of every slot after each.

    Sums are kept per block as blocks change, so a step costs time proportional to what it
    changes.
    """

    def __init__(self, shape: PoolShape) -> None:
        self.shape = shape
        self.holders: dict[int, Holder] = {}
        self._owners: list[set[int]] = [set() for _ in range(shape.blocks)]
        # A block has one place in every table that holds it: sharing is sharing of a prefix.
        self._logical = [0] * shape.blocks
        self._sums = dict.fromkeys(SlotState, 0)
        self._owned_blocks = 0
        self.last_step = -1

    def apply(self, plan: StepPlan) -> SlotCounts:
        """Take a plan's facts into account, in their order, and count.

        Raises:
            ReplayError: the plan contradicts the state before it.
        """
        if plan.step <= self.last_step:
            raise ReplayError(f"step {plan.step} after step {self.last_step}")
        self.last_step = plan.step
        for finish in plan.finished:
            if finish.reason is not FinishReason.REFUSED:
                self._mark_finished(finish.request)
        for request in plan.preempted:
            self._require(request in self.holders, f"request {request} preempted, holds nothing")
        for op in plan.ops:
            self._apply_op(op)
        for request in plan.preempted:
            self._require(request not in self.holders, f"request {request} preempted, keeps blocks")
        for chunk in plan.chunks:
            self._apply_chunk(chunk)
        return self.counts()

    def counts(self) -> SlotCounts:
        """Slots in each state now."""
        return _counts(self.shape, self._sums, self._owned_blocks)

    @property
    def written_slots(self) -> int:
        """Slots that hold something: what a count over poisoned tensors must find."""
        return sum(self._filled(block) for block, own in enumerate(self._owners) if own)

    def tables(self) -> dict[int, tuple[int, ...]]:
        """Block table of every request that holds blocks."""
        return {request: tuple(h.table) for request, h in self.holders.items() if h.table}

    def _apply_op(self, op: BlockOp) -> None:
        for block in op.blocks:
            self._require(0 <= block < self.shape.blocks, f"no block {block} in the pool")
        if op.kind is OpKind.ALLOCATE:
            self._allocate(op)
        elif op.kind is OpKind.FREE:
            self._free(op)
        else:
            raise ReplayError(f"operation {op.kind} is not known to this version")

    def _allocate(self, op: BlockOp) -> None:
        request = self._request_of(op)
        holder = self.holders.setdefault(request, Holder())
        self._require(not holder.finished, f"request {request} has ended and is given blocks")
        for block in op.blocks:
            self._require(not self._owners[block], f"block {block} is not free")
            self._logical[block] = len(holder.table)
            holder.table.append(block)
            self._owners[block].add(request)
            self._owned_blocks += 1
            self._account(block, +1)

    def _free(self, op: BlockOp) -> None:
        request = self._request_of(op)
        holder = self.holders.get(request)
        self._require(holder is not None, f"request {request} frees and holds nothing")
        assert holder is not None
        self._require(holder.table == list(op.blocks), f"request {request} frees other blocks")
        for block in op.blocks:
            self._account(block, -1)
            self._owners[block].discard(request)
            self._owned_blocks -= 1
        del self.holders[request]

    def _apply_chunk(self, chunk: Chunk) -> None:
        holder = self.holders.get(chunk.request)
        self._require(holder is not None, f"request {chunk.request} runs without blocks")
        assert holder is not None
        self._require(holder.written == chunk.start, f"request {chunk.request} skips positions")
        late = chunk.padding and chunk.start
        self._require(not late, f"request {chunk.request} gets fillers behind its first tokens")
        size = self.shape.block_size
        padding = holder.padding + chunk.padding
        end = padding + chunk.start + chunk.count
        self._require(
            end <= len(holder.table) * size, f"request {chunk.request} outgrows its blocks"
        )
        first = (holder.padding + holder.written) // size
        touched = holder.table[first : -(-end // size)]
        for block in touched:
            self._account(block, -1)
        holder.padding = padding
        holder.written = chunk.start + chunk.count
        for block in touched:
            self._account(block, +1)

    def _mark_finished(self, request: int) -> None:
        holder = self.holders.get(request)
        if holder is None:
            return  # ended while waiting: it held nothing
        for block in holder.table:
            self._account(block, -1)
        holder.finished = True
        for block in holder.table:
            self._account(block, +1)

    def _account(self, block: int, sign: int) -> None:
        """Add (or take away) what ``block`` contributes to the sums of an owned block."""
        size = self.shape.block_size
        padding, filled, alive = self._fill(block)
        self._sums[SlotState.PADDING] += sign * padding
        if alive:
            self._sums[SlotState.LIVE] += sign * (filled - padding)
            self._sums[SlotState.UNWRITTEN] += sign * (size - filled)
        else:
            self._sums[SlotState.FINISHED] += sign * (size - padding)

    def _fill(self, block: int) -> tuple[int, int, bool]:
        """(filler slots, slots written including fillers, has an unfinished owner) of a block."""
        size = self.shape.block_size
        before = self._logical[block] * size
        padding = filled = 0
        alive = False
        for request in self._owners[block]:
            holder = self.holders[request]
            padding = max(padding, _clamp(holder.padding - before, size))
            filled = max(filled, _clamp(holder.padding + holder.written - before, size))
            alive = alive or not holder.finished
        return padding, filled, alive

    def _filled(self, block: int) -> int:
        return self._fill(block)[1]

    def _request_of(self, op: BlockOp) -> int:
        if op.request is None:
            raise ReplayError(f"{op.kind} names no request")
        return op.request

    @staticmethod
    def _require(condition: bool, message: str) -> None:
        if not condition:
            raise ReplayError(message)


def recount(shape: PoolShape, holders: dict[int, Holder]) -> SlotCounts:
    """Count again from the tables alone: visit every slot, ask every holder. Slow and plain."""
    sums = dict.fromkeys(SlotState, 0)
    owned: set[int] = set()
    for block in range(shape.blocks):
        views = [(h, i) for h in holders.values() for i, b in enumerate(h.table) if b == block]
        if not views:
            continue
        owned.add(block)
        for offset in range(shape.block_size):
            slots = [(h, i * shape.block_size + offset) for h, i in views]
            sums[_slot_state(slots)] += 1
    return _counts(shape, sums, len(owned))


def _slot_state(views: Sequence[tuple[Holder, int]]) -> SlotState:
    """State of an owned slot that each holder sees at the given index of its sequence."""
    if any(not h.finished and h.padding <= i < h.padding + h.written for h, i in views):
        return SlotState.LIVE
    if any(i < h.padding for h, i in views):
        return SlotState.PADDING
    if all(h.finished for h, _ in views):
        return SlotState.FINISHED
    return SlotState.UNWRITTEN


def _counts(shape: PoolShape, sums: dict[SlotState, int], owned_blocks: int) -> SlotCounts:
    states = {state: count for state, count in sums.items() if count}
    if not shape.elastic:
        free = (shape.blocks - owned_blocks) * shape.block_size
        held_back = min(shape.watermark_blocks * shape.block_size, free)
        if held_back:
            states[SlotState.WATERMARK] = held_back
        if free - held_back:
            states[SlotState.FREE] = free - held_back
    return SlotCounts(states)


def _clamp(value: int, size: int) -> int:
    return min(max(value, 0), size)


def replay(shape: PoolShape, plans: Iterable[StepPlan]) -> list[SlotCounts]:
    """Slot counts after each of ``plans``, from an empty pool.

    Raises:
        ReplayError: see :meth:`Ledger.apply`.
    """
    ledger = Ledger(shape)
    return [ledger.apply(plan) for plan in plans]
