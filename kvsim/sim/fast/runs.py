"""Runs of blocks published by one request, and the integrity check of their pool.

See :mod:`kvsim.sim.fast.run_pool` for a drawing.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from kvsim.core.blocks import BlockPool, PoolError, block_array


@dataclass(slots=True, eq=False)
class BlockRun:
    """Consecutive blocks published by one request, from logical block ``place`` on.

    Attributes:
        duplicate: it is a single block, published under a key that another block had.
        steps: the step in which each block was published.
        stems: stems of the keys in order, with the first logical block and the one after the last.
        owners: number of leading blocks of each owner.
        segments: segments of the cached tail, last blocks first.
    """

    place: int
    publisher: int
    duplicate: bool = False
    blocks: array[int] = field(default_factory=block_array)
    steps: list[int] = field(default_factory=list)
    stems: dict[Hashable, tuple[int, int]] = field(default_factory=dict)
    owners: dict[int, int] = field(default_factory=dict)
    segments: list[CachedSegment] = field(default_factory=list)

    @property
    def end(self) -> int:
        """Logical index after its last block."""
        return self.place + len(self.blocks)

    @property
    def owned(self) -> int:
        """Number of leading blocks with an owner."""
        return max(self.owners.values(), default=0)


@dataclass(slots=True, eq=False)
class CachedSegment:
    """Blocks ``low`` to ``high - 1`` of a run that became cached at the same time."""

    run: BlockRun
    low: int
    high: int


class Hits(array):  # type: ignore[type-arg]  # in Python 3.11 it takes no argument here
    """Blocks found by a lookup, and the runs that they are part of."""

    def __init__(self, _typecode: str = "i") -> None:
        self.runs: list[tuple[BlockRun, int]] = []


def runs_of(hits: Iterable[int]) -> list[tuple[BlockRun, int]]:
    """Return the runs of found blocks, and the number of blocks in each.

    Raises:
        PoolError: the blocks are not the result of a lookup.
    """
    if isinstance(hits, Hits):
        return hits.runs
    if tuple(hits):
        raise PoolError("these blocks were not found under any keys")
    return []


class RunRecords(BlockPool):
    """The read-only part of :class:`kvsim.sim.fast.run_pool.RunPool`."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        # Runs of each stem, and of each request, sorted by their first logical block.
        self._stems: dict[Hashable, list[BlockRun]] = {}
        self._runs: dict[int, list[BlockRun]] = {}
        self._queue: OrderedDict[CachedSegment, None] = OrderedDict()
        self._cached = 0

    # -- state -----------------------------------------------------------------------------

    @property
    def num_free(self) -> int:
        """See :class:`BlockPool`."""
        return self.num_blocks - self._top + self._cached

    @property
    def num_cached(self) -> int:
        """See :class:`BlockPool`."""
        return self._cached

    def occupancy(self) -> tuple[int, int, int]:
        """See :class:`BlockPool`."""
        return self._top - self._cached, self._cached, self._extra

    @property
    def cached(self) -> tuple[int, ...]:
        """See :class:`BlockPool`."""
        segments = (segment.run.blocks[segment.low : segment.high] for segment in self._queue)
        return tuple(block for blocks in segments for block in reversed(blocks))

    def references(self, block: int) -> int:
        """See :class:`BlockPool`."""
        return sum(block in table for table in self._tables.values())

    # -- integrity -------------------------------------------------------------------------

    def _check_owners(self, held: Sequence[int]) -> None:
        counted = array("i", bytes(4 * len(held)))
        for request, runs in self._runs.items():
            table = self._tables.get(request, block_array())
            for run in runs:
                own = run.owners.get(request, 0)
                if not own or table[run.place : run.place + own] != run.blocks[:own]:
                    raise PoolError(f"request {request} does not have the run that it owns")
                for block in run.blocks[:own]:
                    counted[block] += 1
        if any(counted[block] != owners for block, owners in enumerate(held) if owners > 1):
            raise PoolError("the owners of shared blocks are counted wrongly")
        if any(
            run not in self._runs.get(owner, ()) for run in self._all_runs() for owner in run.owners
        ):
            raise PoolError("a run is missing from its owner")

    def _check_keys(self) -> None:
        taken = self._content_free()
        queued: list[CachedSegment] = []
        for stem, runs in self._stems.items():
            ends = [end for run in runs if not run.duplicate for end in run.stems[stem]]
            if ends != sorted(ends):
                raise PoolError(f"the runs of {stem} are out of order")
        for run in self._all_runs():
            for block in run.blocks:
                if self._known(block, len(taken)) and taken[block]:
                    raise PoolError("a block without content, or with another's, has a key")
                taken[block] = 1
            queued += run.segments
            self._check_run(run)
        if self._queue.keys() != set(queued) or len(self.cached) != self._cached:
            raise PoolError("the queue of cached blocks is not that of the runs")

    def _all_runs(self) -> set[BlockRun]:
        return {run for runs in self._stems.values() for run in runs}

    def _check_run(self, run: BlockRun) -> None:
        if run.stems and next(iter(run.stems.values()))[0] != run.place:
            raise PoolError("a run does not begin with its first stem")
        end, order = len(run.blocks), list(self._queue) if len(run.segments) > 1 else run.segments
        if run.duplicate and end != 1:
            raise PoolError("a duplicate is not a single block")
        if len(run.steps) != end or any(run not in self._stems.get(stem, ()) for stem in run.stems):
            raise PoolError("a block is not found, or not known by when it was published")
        for segment in run.segments:
            if segment.run is not run or segment.high != end or segment.low >= end:
                raise PoolError("the cached pieces of a run are not its tail")
            end = segment.low
        if end != run.owned or sorted(run.segments, key=order.index) != run.segments:
            raise PoolError("the cached pieces of a run are not its blocks without owner")
