"""A block pool that keeps cached content as runs, for simulations of long prompts.

A run is a sequence of consecutive blocks published by one request. Keys are chained over the
prefix, so a lookup finds a leading part of a run. Each owner has a number of leading blocks; the
tail without an owner is cached.

    stems (hash ids)      a       b       own
    run of request 2      7   8 | 9   3 | 4   1
    owners            r0  x   x   x   x
                      r5  x   x
    cached segments                       └───┴── [4:6], queued since r2 ended

Runs do not overlap. A block whose key is published already is a run of its own, found once those
before it are evicted.

The eviction queue holds segments; a segment loses its last blocks first. Blocks move as slices and
are found by stems (see :mod:`kvsim.traces.hash_keys`): a hash block of 512 tokens is one stem, not
32 blocks of 16. With unchained keys, a run is not found from its middle.

There are no forks here, so no shared block is written, and the cache is never reset. Otherwise it
equals :class:`kvsim.core.blocks.BlockPool`, block for block; a property test compares them.
"""

from __future__ import annotations

from array import array
from bisect import insort
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from kvsim.core.blocks import BlockPool, Key, PoolError, block_array
from kvsim.traces.hash_keys import KeyRun, key_runs


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
    """Return the runs of found blocks, and the number of blocks in each."""
    return hits.runs if isinstance(hits, Hits) else []


class RunPool(BlockPool):
    """A pool of runs; arguments and errors are those of :class:`BlockPool`."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        # Runs of each stem, and of each request, sorted by their first logical block.
        self._stems: dict[Hashable, list[BlockRun]] = {}
        self._runs: dict[int, list[BlockRun]] = {}
        self._queue: OrderedDict[CachedSegment, None] = OrderedDict()
        self._cached = 0

    @property
    def num_cached(self) -> int:
        """See :class:`BlockPool`."""
        return self._cached

    @property
    def cached(self) -> tuple[int, ...]:
        """See :class:`BlockPool`."""
        segments = (segment.run.blocks[segment.low : segment.high] for segment in self._queue)
        return tuple(block for blocks in segments for block in reversed(blocks))

    # -- content ---------------------------------------------------------------------------

    def lookup(self, keys: Sequence[Key]) -> Hits:
        """See :class:`BlockPool`."""
        hits = Hits("i")
        current: BlockRun | None = None
        for stem, _, count in key_runs(keys):
            end = len(hits) + count
            for run in self._stems.get(stem, ()):
                at = len(hits)
                if at == end or run.place > at:
                    break
                if run is not current and run.place < at:
                    continue  # a duplicate
                stop = min(end, run.stems[stem][1])
                hits += run.blocks[at - run.place : stop - run.place]
                if run is current:
                    hits.runs.pop()
                hits.runs.append((run, len(hits) - run.place))
                current = run
            if len(hits) < end:
                break
        return hits

    def share(
        self, request: int, blocks: Iterable[int], owners: Iterable[int] = ()
    ) -> Sequence[int]:
        """Start the table of ``request`` with the result of :meth:`lookup`.

        Raises:
            PoolError: the request already has blocks.
        """
        shared, found_runs = block_array(blocks), runs_of(blocks)
        if request in self._tables or tuple(owners):
            raise PoolError(f"request {request} can only begin with what was found")
        for run, found in found_runs:
            owned = run.owned
            self._extra += min(found, owned)
            if found > owned:
                self._revive(run, found)
            run.owners[request] = found
        if shared:
            self._tables[request] = shared
            self._runs[request] = [run for run, _ in found_runs]
        return shared[:]

    def _revive(self, run: BlockRun, upto: int) -> None:
        """Remove the leading ``upto`` blocks of a run from the eviction queue."""
        while run.segments and run.segments[-1].low < upto:
            segment = run.segments[-1]
            low, segment.low = segment.low, min(upto, segment.high)
            self._cached -= segment.low - low
            if segment.low == segment.high:
                run.segments.pop()
                del self._queue[segment]

    def publish(self, request: int, first: int, keys: Sequence[Key], step: int = 0) -> None:
        """See :class:`BlockPool`."""
        table = self._tables.get(request, block_array())
        if len(table) < len(keys):
            raise PoolError(f"request {request} has no {len(keys)} blocks")
        own = self._runs.setdefault(request, [])
        last = own[-1] if own else None
        if last and (
            last.duplicate or last.publisher != request or last.owners[request] < len(last.blocks)
        ):
            last = None  # the request cannot extend this run
        for new in key_runs(keys, first):
            runs = self._stems.get(new.stem)
            if last and last.end == new.place and (not runs or runs[-1] is last):
                self._grow(last, new, table, step)
                continue
            for part, duplicate in self._parts(new):
                if duplicate or not last or last.end != part.place:
                    last = BlockRun(part.place, request, duplicate)
                    own.append(last)
                self._grow(last, part, table, step)
                if duplicate:
                    last = None

    def _parts(self, new: KeyRun) -> Iterator[tuple[KeyRun, bool]]:
        """Divide a key run into parts not published yet, and single blocks that are (True)."""
        place, end = new.place, new.place + new.blocks
        for run in tuple(self._stems.get(new.stem, ())):
            start, stop = (min(each, end) for each in run.stems[new.stem])
            if place < start:
                yield KeyRun(new.stem, place, start - place), False
            for published in range(max(place, start), stop):
                yield KeyRun(new.stem, published, 1), True
            place = max(place, stop)
        if place < end:
            yield KeyRun(new.stem, place, end - place), False

    def _grow(self, run: BlockRun, keys: KeyRun, table: array[int], step: int) -> None:
        """Publish blocks of ``table`` under new keys at the end of a run."""
        stem, place, count = keys
        if stem in run.stems:
            start = run.stems[stem][0]
        else:
            start = place
            runs = self._stems.get(stem)
            if runs is None:
                self._stems[stem] = [run]
            else:
                insort(runs, run, key=lambda each: each.place)
        run.blocks += table[place : place + count]
        run.steps += [step] * count
        run.stems[stem] = (start, place + count)
        run.owners[run.publisher] = len(run.blocks)

    def retract(self, request: int, first: int) -> None:
        """See :class:`BlockPool`; no other request shares the blocks yet."""
        for run in reversed(self._runs.get(request, [])[:]):
            kept = max(0, first - run.place)
            if run.publisher != request or kept >= run.owners[request]:
                continue
            run.owners[request] = kept
            self._truncate(run, kept)
            if not kept:
                del run.owners[request]
                self._runs[request].remove(run)

    def origins(self, hits: Sequence[int]) -> Iterable[tuple[int, int, int]]:
        """See :class:`BlockPool`."""
        for run, found in runs_of(hits):
            for step, blocks in groupby(run.steps[:found]):
                yield run.publisher, step, len(list(blocks))

    def count_cached(self, hits: Sequence[int]) -> int:
        """See :class:`BlockPool`."""
        return sum(max(0, found - run.owned) for run, found in runs_of(hits))

    # -- release ---------------------------------------------------------------------------

    def release(self, request: int) -> tuple[Sequence[int], Sequence[int]]:
        """See :class:`BlockPool`."""
        table = self._tables.pop(request, None)
        if table is None:
            raise PoolError(f"request {request} holds no blocks")
        kept = block_array()
        end = len(table)
        for run in reversed(self._runs.pop(request, [])):
            own = run.owners.pop(request)
            behind = run.place + own
            if behind < end:
                self._push_free(table[behind:end])  # without a key
            end = run.place
            kept = self._queue_unowned(run, own) + kept
        self._push_free(table[:end])
        return table, kept

    def _queue_unowned(self, run: BlockRun, own: int) -> array[int]:
        """Queue the blocks among the first ``own`` of a run that have no owner any more."""
        owned = run.owned
        self._extra -= min(own, owned)
        if own <= owned:
            return block_array()
        segment = CachedSegment(run, owned, own)
        run.segments.append(segment)
        self._queue[segment] = None
        self._cached += own - owned
        return run.blocks[owned:own]

    def _evict(self, count: int) -> Sequence[int]:
        evicted = block_array()
        while len(evicted) < count:
            segment = next(iter(self._queue))
            run, high = segment.run, segment.high
            segment.high = max(segment.low, high - (count - len(evicted)))
            lost = run.blocks[segment.high : high]
            lost.reverse()
            evicted += lost
            if segment.high == segment.low:
                run.segments.remove(segment)
                del self._queue[segment]
            self._truncate(run, segment.high)
        self._cached -= count
        self._evicted += evicted
        return evicted

    def _truncate(self, run: BlockRun, length: int) -> None:
        del run.blocks[length:], run.steps[length:]
        end = run.place + length
        while run.stems:
            stem = next(reversed(run.stems))
            start, stop = run.stems[stem]
            if start < end:
                if stop > end:
                    run.stems[stem] = (start, end)
                return
            del run.stems[stem]
            runs = self._stems[stem]
            runs.remove(run)
            if not runs:
                del self._stems[stem]

    # -- integrity -------------------------------------------------------------------------

    def _check_records(self) -> None:
        if len(self.cached) != self._cached:
            raise PoolError("the cached blocks are counted wrongly")
        for request, runs in self._runs.items():
            for run in runs:
                own = run.owners[request]
                if self._tables[request][run.place : run.place + own] != run.blocks[:own]:
                    raise PoolError(f"request {request} does not have the run that it owns")
