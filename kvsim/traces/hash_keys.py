"""Keys of a request's blocks from the ``hash_ids`` of its trace, as runs.

    hash ids      a                 b         (512 tokens each; the prompt ends within b)
    blocks of 16  0 1 2 ...     31  32 .. 40  41 42         from 41 on: generated tokens too
    runs          (a, 0, 32)        (b, 32, 9)  (own, 41, 2)

A pool block lies in one hash block, or ends in one: equal ids there mean equal tokens up to its
end. Later blocks have keys that no other request has.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

# More blocks than any prompt has: id and logical index combine into one number.
_MAX_BLOCKS = 1 << 24


class KeyRun(NamedTuple):
    """Keys of ``blocks`` consecutive blocks from logical block ``place`` on.

    Runs of equal stems have equal keys at equal logical indices.
    """

    stem: Hashable
    place: int
    blocks: int


class HashKeys:
    """Keys of one request; a call returns those of its first n blocks.

    Args:
        row: number of the request, for keys that no other has.
        prompt: its tokens; ``ids`` are of ``hash_size`` tokens each, the last may be shorter.
    """

    __slots__ = ("_block_size", "_hash_size", "_ids", "_own", "whole")

    def __init__(
        self, row: int, prompt: int, ids: tuple[int, ...], hash_size: int, block_size: int
    ) -> None:
        self._ids = ids
        self._hash_size = hash_size
        self._block_size = block_size
        self._own = (row,)
        # Blocks covered by the ids.
        self.whole = min(prompt // block_size, len(ids) * hash_size // block_size)

    def __call__(self, count: int) -> FirstKeys:
        """Return the keys of the first ``count`` blocks."""
        return FirstKeys(self, count)

    def key(self, place: int) -> Hashable:
        """Return the key of one block."""
        if place >= self.whole:
            return (*self._own, place)
        return self._ids[self._index(place)] * _MAX_BLOCKS + place

    def runs(self, first: int, end: int) -> Iterator[KeyRun]:
        """Return the keys of the blocks ``first`` to ``end - 1``."""
        place, hashed_end = first, min(end, self.whole)
        while place < hashed_end:
            index = self._index(place)
            stop = min((index + 1) * self._hash_size // self._block_size, hashed_end)
            start = index * self._hash_size // self._block_size
            yield KeyRun(self._ids[index] * _MAX_BLOCKS + start, place, stop - place)
            place = stop
        if place < end:
            yield KeyRun(self._own, place, end - place)

    def _index(self, place: int) -> int:
        """Return the index of the hash block with the last token of a block."""
        return ((place + 1) * self._block_size - 1) // self._hash_size


class FirstKeys(Sequence[Hashable]):
    """Keys of the first blocks of a request, individually or as runs."""

    __slots__ = ("_count", "_keys")

    def __init__(self, keys: HashKeys, count: int) -> None:
        self._keys = keys
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        places = range(self._count)[index]
        if isinstance(places, range):
            return [self._keys.key(place) for place in places]
        return self._keys.key(places)

    def runs(self, first: int = 0) -> Iterator[KeyRun]:
        """Return the runs of the blocks from ``first`` on."""
        return self._keys.runs(first, self._count)


def key_runs(keys: Sequence[Hashable], first: int = 0) -> Iterator[KeyRun]:
    """Return keys as runs; keys other than :class:`FirstKeys` as runs of one block."""
    if isinstance(keys, FirstKeys):
        return keys.runs(first)
    return (KeyRun(keys[place], place, 1) for place in range(first, len(keys)))
