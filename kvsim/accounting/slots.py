"""Slot states, the shape of a pool, slot counts, and blocks saved by sharing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


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
OTHER_STATES = tuple(state for state in SlotState if state not in ALLOCATED_STATES)


@dataclass(frozen=True, slots=True)
class PoolShape:
    """The pool of one arm.

    Attributes:
        blocks: number of blocks; of an elastic pool, the maximum.
        block_size: slots in a block. A contiguous slab is one block of the maximum length.
        slot_bytes: bytes of K and V of one token over all layers.
        watermark_blocks: free blocks that admission reserves for running requests.
        elastic: memory is taken from the device on allocation and returned when freed (a
            growing cache), so reserved equals allocated.
        scale_bytes: bytes of a block in addition to its slots: scales of a quantised cache.
        engine_blocks: leading blocks used by the engine itself (vLLM's null block).
    """

    blocks: int
    block_size: int
    slot_bytes: int
    watermark_blocks: int = 0
    elastic: bool = False
    scale_bytes: int = 0
    engine_blocks: int = 0

    @property
    def slots(self) -> int:
        """All slots of the pool."""
        return self.blocks * self.block_size

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return self.block_size * self.slot_bytes + self.scale_bytes

    @property
    def bytes(self) -> int:
        """Bytes of the whole pool."""
        return self.blocks * self.block_bytes


@dataclass(frozen=True, slots=True)
class SlotCounts:
    """Slots in each state at one moment; absent states have no slots."""

    states: dict[SlotState, int]

    def __getitem__(self, state: SlotState) -> int:
        return self.states.get(state, 0)

    @property
    def reserved(self) -> int:
        """All slots."""
        return sum(self.states.values())

    @property
    def allocated(self) -> int:
        """Slots allocated to requests."""
        return sum(self[state] for state in ALLOCATED_STATES)

    @property
    def live(self) -> int:
        """Slots that an unfinished request will attend to."""
        return self[SlotState.LIVE]

    @property
    def wasted(self) -> int:
        """Allocated slots that are not live."""
        return self.allocated - self.live


def count_slots(
    shape: PoolShape, sums: Mapping[SlotState, int], occupied_blocks: int
) -> SlotCounts:
    """Add the free, watermark and engine slots to the sums over occupied blocks."""
    states = {state: count for state, count in sums.items() if count}
    if not shape.elastic:
        free = (shape.blocks - shape.engine_blocks - occupied_blocks) * shape.block_size
        if shape.engine_blocks:
            states[SlotState.ENGINE] = shape.engine_blocks * shape.block_size
        held_back = min(shape.watermark_blocks * shape.block_size, free)
        if held_back:
            states[SlotState.WATERMARK] = held_back
        if free - held_back:
            states[SlotState.FREE] = free - held_back
    return SlotCounts(states)


@dataclass(frozen=True, slots=True)
class Sharing:
    """Blocks that sharing saves, at one moment or as block-steps over a run.

        request 0   table [ 3 | 5 | 8 ]
        request 1   table [ 3 | 5 | 2 ]      6 table entries, 4 distinct blocks: 2 of 6 are saved

    The ratio is that of Kwon et al. (arXiv 2309.06180, section 6.3). A cached block counts while a
    request owns it.

    Attributes:
        unshared: entries of all block tables, i.e. blocks needed without sharing.
        held: distinct blocks in the tables.
    """

    unshared: int
    held: int

    @property
    def saved(self) -> int:
        """Blocks that sharing saves."""
        return self.unshared - self.held

    @property
    def share(self) -> float | None:
        """Saved blocks / ``unshared``; None if no block is held."""
        return self.saved / self.unshared if self.unshared else None
