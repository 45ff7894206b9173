"""A block pool whose content is kept in runs, for replays of long prompts.

What one request published, block behind block, is a run. Keys are chained over the prefix, so
others find the beginning of a run or all of it: those who own it each own its first so many blocks,
and what nobody owns is its tail.

    stems (hash ids)      a       b       own
    run of request 2      7   8 | 9   3 | 4   1
    owners            r0  x   x   x   x
                      r5  x   x
    cached pieces                         └───┴── [4:6], in the queue since r2 ended

The queue of what would be evicted next holds pieces; a piece loses its last blocks first. Blocks
move as slices, and are found by stems (see :mod:`kvsim.hash_keys`): a hash block of 512 tokens is
one of them, not 32 blocks of 16. Where keys are not chained, a run that is met in its middle is
not found.

Requests do not fork here, so nobody writes to a block of several owners. In everything else it is
:class:`kvsim.blocks.BlockPool`, block for block; a property test compares them.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from kvsim.blocks import BlockPool, Key, PoolError
from kvsim.hash_keys import KeyRun, key_runs


@dataclass(slots=True, eq=False)
class Run:
    """Blocks from logical block ``place`` on that one request filled.

    Attributes:
        steps: when they were published, block by block.
        stems: what their keys belong to, in order: the logical block where it begins, and the one
            behind its last.
        owners: how many of the first blocks each owner has.
        pieces: of the cached tail, the last blocks first.
    """

    place: int
    publisher: int
    blocks: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    stems: dict[Hashable, tuple[int, int]] = field(default_factory=dict)
    owners: dict[int, int] = field(default_factory=dict)
    pieces: list[Piece] = field(default_factory=list)

    @property
    def end(self) -> int:
        """The logical block behind its last."""
        return self.place + len(self.blocks)

    @property
    def owned(self) -> int:
        """How many of the first blocks anybody owns."""
        return max(self.owners.values(), default=0)


@dataclass(slots=True, eq=False)
class Piece:
    """Blocks ``low`` to before ``high`` of a run, which became cached at the same time."""

    run: Run
    low: int
    high: int


class Hits(list[int]):
    """Blocks that were found, and the runs that they begin."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: list[tuple[Run, int]] = []


class RunPool(BlockPool):
    """See the module's description; arguments and errors are those of the block pool."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        # The runs of a stem, in the order of their places, and those of a request likewise.
        self._stems: dict[Hashable, list[Run]] = {}
        self._runs: dict[int, list[Run]] = {}
        self._queue: OrderedDict[Piece, None] = OrderedDict()
        self._cached = 0

    # -- what is there ---------------------------------------------------------------------

    @property
    def num_free(self) -> int:
        """See :class:`BlockPool`."""
        return len(self._free) + self._cached

    @property
    def num_cached(self) -> int:
        """See :class:`BlockPool`."""
        return self._cached

    def occupancy(self) -> tuple[int, int, int]:
        """See :class:`BlockPool`."""
        return self.num_blocks - len(self._free) - self._cached, self._cached, self._extra

    @property
    def cached(self) -> tuple[int, ...]:
        """See :class:`BlockPool`."""
        pieces = (piece.run.blocks[piece.low : piece.high] for piece in self._queue)
        return tuple(block for blocks in pieces for block in reversed(blocks))

    def is_cached(self, block: int) -> bool:
        """See :class:`BlockPool`."""
        return block in self.cached

    def references(self, block: int) -> int:
        """See :class:`BlockPool`."""
        return sum(block in table for table in self._tables.values())

    # -- content ---------------------------------------------------------------------------

    def lookup(self, keys: Sequence[Key]) -> Hits:
        """See :class:`BlockPool`."""
        hits = Hits()
        current: Run | None = None
        for stem, _, count in key_runs(keys):
            end = len(hits) + count
            for run in self._stems.get(stem, ()):
                at = len(hits)
                if (run is not current and run.place != at) or at == end:
                    break
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
    ) -> tuple[int, ...]:
        """Begin the table of ``request`` with what :meth:`lookup` found.

        Raises:
            PoolError: something else, or the request holds blocks already.
        """
        shared, found_runs = tuple(blocks), _runs_of(blocks)
        if request in self._tables or tuple(owners):
            raise PoolError(f"request {request} can only begin with what was found")
        if any(found > len(run.blocks) for run, found in found_runs):
            raise PoolError("what was found is not there any more")
        for run, found in found_runs:
            owned = run.owned
            self._extra += min(found, owned)
            if found > owned:
                self._revive(run, found)
            run.owners[request] = found
        if shared:
            self._tables[request] = list(shared)
            self._runs[request] = [run for run, _ in found_runs]
        return shared

    def _revive(self, run: Run, upto: int) -> None:
        """Take the first blocks of a run out of the queue."""
        while run.pieces and run.pieces[-1].low < upto:
            piece = run.pieces[-1]
            low, piece.low = piece.low, min(upto, piece.high)
            self._cached -= piece.low - low
            if piece.low == piece.high:
                run.pieces.pop()
                del self._queue[piece]

    def publish(self, request: int, first: int, keys: Sequence[Key], step: int = 0) -> None:
        """See :class:`BlockPool`."""
        table = self._tables.get(request, [])
        if len(table) < len(keys):
            raise PoolError(f"request {request} has no {len(keys)} blocks")
        mine = self._runs.setdefault(request, [])
        last = mine[-1] if mine else None
        if last and (last.publisher != request or last.owners[request] < len(last.blocks)):
            last = None  # nothing of ours can come behind its blocks
        for new in key_runs(keys, first):
            runs = self._stems.get(new.stem)
            if last and last.end == new.place and (not runs or runs[-1] is last):
                self._grow(last, new, table, step)
                continue
            for part in self._unknown(new):
                if not last or last.end != part.place:
                    last = Run(part.place, request)
                    mine.append(last)
                self._grow(last, part, table, step)

    def _unknown(self, new: KeyRun) -> list[KeyRun]:
        """The parts of a run of keys under which nothing is found yet."""
        parts, place, end = [], new.place, new.place + new.blocks
        for run in self._stems.get(new.stem, ()):
            start, stop = run.stems[new.stem]
            if place < start:
                parts.append(KeyRun(new.stem, place, min(start, end) - place))
            place = max(place, stop)
            if place >= end:
                return parts
        return [*parts, KeyRun(new.stem, place, end - place)]

    def _grow(self, run: Run, keys: KeyRun, table: list[int], step: int) -> None:
        """Publish blocks of ``table`` under keys that lead nowhere yet, at the end of a run."""
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
        """See :class:`BlockPool`.

        Raises:
            PoolError: another request shares what is retracted.
        """
        for run in reversed(self._runs.get(request, [])[:]):
            kept = max(0, first - run.place)
            if run.publisher != request or kept >= run.owners[request]:
                continue
            if sorted(run.owners.values())[:-1][-1:] > [kept] or run.pieces:
                raise PoolError(f"what request {request} retracts is not its own alone")
            run.owners[request] = kept
            self._cut(run, kept)
            if not kept:
                del run.owners[request]
                self._runs[request].remove(run)

    def origins(self, hits: Sequence[int]) -> Iterable[tuple[int, int, int]]:
        """See :class:`BlockPool`."""
        for run, found in _runs_of(hits):
            for step, blocks in groupby(run.steps[:found]):
                yield run.publisher, step, len(list(blocks))

    def written_before(self, hits: Sequence[int], step: int) -> Sequence[int]:
        """Beams alone ask for it.

        Raises:
            PoolError: always.
        """
        raise PoolError(f"no beams here: {len(hits)} blocks before step {step}")

    def count_cached(self, hits: Sequence[int]) -> int:
        """See :class:`BlockPool`."""
        return sum(max(0, found - run.owned) for run, found in _runs_of(hits))

    def reset_cache(self) -> bool:
        """See :class:`BlockPool`."""
        if self._tables:
            return False
        self._free.extend(self.cached)
        self._stems.clear()
        self._queue.clear()
        self._cached = 0
        return True

    # -- taking back -----------------------------------------------------------------------

    def release(self, request: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """See :class:`BlockPool`."""
        table = self._tables.pop(request, None)
        if table is None:
            raise PoolError(f"request {request} holds no blocks")
        kept: list[int] = []
        end = len(table)
        for run in reversed(self._runs.pop(request, [])):
            mine = run.owners.pop(request)
            behind = run.place + mine
            if behind < end:
                self._free += table[behind:end][::-1]  # without a key
            end = run.place
            kept += reversed(self._leave(run, mine))
        self._free += table[:end][::-1]
        return tuple(table), tuple(kept[::-1])

    def _leave(self, run: Run, mine: int) -> list[int]:
        """Queue what nobody owns any more of the first blocks of a run."""
        owned = run.owned
        self._extra -= min(mine, owned)
        if mine <= owned:
            return []
        piece = Piece(run, owned, mine)
        run.pieces.append(piece)
        self._queue[piece] = None
        self._cached += mine - owned
        return run.blocks[owned:mine]

    def _evict(self, count: int) -> list[int]:
        evicted: list[int] = []
        while len(evicted) < count:
            piece = next(iter(self._queue))
            run, high = piece.run, piece.high
            piece.high = max(piece.low, high - (count - len(evicted)))
            evicted += reversed(run.blocks[piece.high : high])
            if piece.high == piece.low:
                run.pieces.remove(piece)
                del self._queue[piece]
            self._cut(run, piece.high)
        self._cached -= count
        self._evicted += evicted
        return evicted

    def _cut(self, run: Run, length: int) -> None:
        """Forget the content of the last blocks of a run."""
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

    # -- trust -----------------------------------------------------------------------------

    def _check_owners(self, held: Counter[int]) -> None:
        counted: Counter[int] = Counter()
        for request, runs in self._runs.items():
            table = self._tables.get(request, [])
            for run in runs:
                mine = run.owners.get(request, 0)
                if not mine or table[run.place : run.place + mine] != run.blocks[:mine]:
                    raise PoolError(f"request {request} does not have the run that it owns")
                counted.update(run.blocks[:mine])
        if any(counted[block] != owners for block, owners in held.items() if owners > 1):
            raise PoolError("the owners of shared blocks are counted wrongly")
        if any(
            run not in self._runs.get(owner, ()) for run in self._all_runs() for owner in run.owners
        ):
            raise PoolError("a run has an owner who does not know it")

    def _check_keys(self) -> None:
        free, seen = set(self._free), Counter[int]()
        queued: list[Piece] = []
        for stem, runs in self._stems.items():
            ends = [end for run in runs for end in run.stems[stem]]
            if ends != sorted(ends):
                raise PoolError(f"the runs of {stem} are out of order")
        for run in self._all_runs():
            seen.update(run.blocks)
            queued += run.pieces
            self._check_run(run)
        if any(count > 1 or block in free for block, count in seen.items()):
            raise PoolError("a block without content, or with another's, has a key")
        if self._queue.keys() != set(queued) or len(self.cached) != self._cached:
            raise PoolError("the queue of cached blocks is not that of the runs")

    def _all_runs(self) -> set[Run]:
        return {run for runs in self._stems.values() for run in runs}

    def _check_run(self, run: Run) -> None:
        if run.stems and next(iter(run.stems.values()))[0] != run.place:
            raise PoolError("a run does not begin with its first stem")
        end, order = len(run.blocks), list(self._queue) if len(run.pieces) > 1 else run.pieces
        if len(run.steps) != end or any(run not in self._stems.get(stem, ()) for stem in run.stems):
            raise PoolError("a block is not found, or not known by when it was published")
        for piece in run.pieces:
            if piece.run is not run or piece.high != end or piece.low >= end:
                raise PoolError("the cached pieces of a run are not its tail")
            end = piece.low
        if end != run.owned or sorted(run.pieces, key=order.index) != run.pieces:
            raise PoolError("the cached pieces of a run are not what nobody owns")


def _runs_of(hits: Iterable[int]) -> list[tuple[Run, int]]:
    if isinstance(hits, Hits):
        return hits.runs
    if tuple(hits):
        raise PoolError("these blocks were not found under any keys")
    return []
