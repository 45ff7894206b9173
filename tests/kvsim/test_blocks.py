"""The block pool: what it hands out, what it takes back, and what it refuses.

Any sequence of operations is compared with a plain model.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sweeps import TIMES

from kvsim.core.blocks import BlockPool, OutOfBlocksError, PoolError, blocks_needed


@given(tokens=st.integers(0, 500), size=st.integers(1, 40))
def test_blocks_needed_is_the_fewest_that_hold_the_tokens(tokens: int, size: int) -> None:
    count = blocks_needed(tokens, size)
    assert (count - 1) * size < tokens <= count * size


@pytest.mark.parametrize(("blocks", "size"), [(0, 4), (4, 0), (-1, 4), (4, -1)])
def test_a_pool_without_blocks_or_slots_is_refused(blocks: int, size: int) -> None:
    with pytest.raises(ValueError, match="pool needs blocks"):
        BlockPool(blocks, size)


def test_freed_blocks_are_the_first_to_be_used_again_in_their_order() -> None:
    pool = BlockPool(5, 4)
    pool.allocate(0, 1)
    pool.allocate(1, 3)
    assert pool.free(1) == (1, 2, 3)
    assert pool.allocate(2, 4) == (1, 2, 3, 4)


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        (lambda pool: pool.allocate(1, 3), OutOfBlocksError),
        (lambda pool: pool.allocate(2, 100), OutOfBlocksError),
        (lambda pool: pool.allocate(1, -1), PoolError),
        (lambda pool: pool.free(2), PoolError),
        (lambda pool: pool.publish(1, 0, "abc"), PoolError),
        (lambda pool: pool.locate(2, 0), PoolError),
        (lambda pool: pool.locate(1, -1), PoolError),
        (lambda pool: pool.locate(1, 8), PoolError),
    ],
)
def test_what_fails_changes_nothing(
    operation: Callable[[BlockPool], object], error: type[PoolError]
) -> None:
    pool = BlockPool(4, 4)
    pool.allocate(1, 2)
    with pytest.raises(error):
        operation(pool)
    pool.check_integrity()
    assert (pool.owners, list(pool.table(1)), pool.num_free) == ((1,), [0, 1], 2)
    assert pool.allocate(1, 2) == (2, 3)


DAMAGE: dict[str, Callable[[BlockPool], object]] = {
    "a lost block": lambda pool: setattr(pool, "_top", pool._top + 1),
    "a block lost from a table": lambda pool: pool._tables[1].pop(),
    "a block beyond the pool": lambda pool: pool._stack.append(pool.num_blocks),
    "a free block listed twice": lambda pool: pool._stack.__setitem__(-1, pool._stack[-2]),
    "an owned block that is free": lambda pool: pool._stack.__setitem__(-1, pool.table(1)[0]),
    "an owned block beyond the pool": lambda pool: pool._tables[1].append(99_999),
    "another's block": lambda pool: pool._tables[1].__setitem__(0, pool._tables[2][0]),
    "a block twice in a table": lambda pool: pool._tables[1].append(pool._tables[1][0]),
    "a lost table": lambda pool: pool._tables.pop(2),
    "a lost key": lambda pool: pool._keys.pop(pool.table(2)[0]),
    "a key of a free block": lambda pool: (
        pool._keys.update({pool._stack[-1]: "x"}), pool._by_key.update({"x": pool._stack[-1]}),
    ),
    "an extra owner too many": lambda pool: pool._extra_owners.update({pool.table(1)[0]: 1}),
    "an extra owner too few": lambda pool: pool._extra_owners.clear(),
    "the sum of extra owners": lambda pool: setattr(pool, "_extra", 7),
}  # fmt: skip


@pytest.mark.parametrize("what", DAMAGE)
def test_check_integrity_finds(what: str) -> None:
    pool = BlockPool(8, 4)
    pool.allocate(1, 2)
    pool.allocate(2, 2)
    pool.allocate(3, 1)
    pool.share(1, pool.table(3), (3,))
    pool.publish(2, 0, ["key"])
    pool.check_integrity()
    DAMAGE[what](pool)
    with pytest.raises(PoolError):
        pool.check_integrity()


def test_the_example_of_the_article() -> None:
    """Lengths 25 and 12 in blocks of 16 that hold 0-15, 16-31 and 32-47."""
    pool = BlockPool(3, 16)
    memory = [list(range(16 * block, 16 * block + 16)) for block in range(3)]
    pool.allocate(0, blocks_needed(25, 16))
    pool.allocate(1, blocks_needed(12, 16))
    assert (list(pool.table(0)), list(pool.table(1)), pool.num_free) == ([0, 1], [2], 0)

    def read(request: int, position: int) -> int:
        place = pool.locate(request, position)
        return memory[place.physical][place.offset]

    assert [read(0, position) for position in range(25)] == list(range(25))
    assert [read(1, position) for position in range(12)] == list(range(32, 44))


BLOCKS = 7
REQUESTS = st.integers(0, 4)


class PoolMachine(RuleBasedStateMachine):
    """Allocates, shares, copies, publishes, frees; ``tables`` and ``content`` are the model."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(BLOCKS, 4)
        self.tables: dict[int, list[int]] = {}
        # Block -> the key it was published under, in the order of publication.
        self.content: dict[int, int] = {}
        self.next_key = 0

    def owners(self, block: int) -> list[int]:
        return [request for request, table in self.tables.items() if block in table]

    @rule(request=REQUESTS, count=st.integers(0, BLOCKS + 2))
    def allocate(self, request: int, count: int) -> None:
        free = self.pool.num_free
        if count > free:
            with pytest.raises(OutOfBlocksError):
                self.pool.allocate(request, count)
            assert self.pool.num_free == free
            return
        blocks = self.pool.allocate(request, count)
        assert len(blocks) == count
        assert not any(self.owners(block) for block in blocks)
        evicted = self.pool.drain_evicted()
        assert set(evicted) == {block for block in blocks if block in self.content}
        for block in evicted:
            del self.content[block]
        if blocks:
            self.tables.setdefault(request, []).extend(blocks)

    @rule(request=REQUESTS, other=REQUESTS, data=st.data())
    def share(self, request: int, other: int, data: st.DataObject) -> None:
        table = self.tables.get(other, [])
        count = data.draw(st.integers(0, len(table)))
        blocks = table[:count]
        if set(blocks) & set(self.tables.get(request, [])):
            with pytest.raises(PoolError, match="already"):
                self.pool.share(request, blocks, (other,))
            return
        if set(blocks) - set(self.content):
            with pytest.raises(PoolError, match="nothing to share"):
                self.pool.share(request, blocks)
        self.pool.share(request, blocks, (other,))
        if blocks:
            self.tables.setdefault(request, []).extend(blocks)

    @precondition(lambda self: self.content)
    @rule(request=REQUESTS, data=st.data())
    def hit(self, request: int, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.content.values())))
        (block,) = self.pool.lookup([key])
        assert self.content[block] == key
        if block not in self.tables.get(request, []):
            self.pool.share(request, [block])
            self.tables.setdefault(request, []).append(block)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        """A stretch of a table, some of it under keys that lead to other blocks already."""
        request = data.draw(st.sampled_from(sorted(self.tables)))
        table = self.tables[request]
        first = data.draw(st.integers(0, len(table) - 1))
        stretch = []
        for block in table[first:]:
            if block in self.content:
                break
            stretch.append(block)
        known = iter(sorted(set(self.content.values())))
        keys = []
        for block in stretch:
            taken = next(known, None) if data.draw(st.booleans()) else None
            if taken is None:
                taken, self.next_key = self.next_key, self.next_key + 1
            self.content[block] = taken
            keys.append(taken)
        before = [None] * first  # of blocks that are there already; not looked at
        self.pool.publish(request, first, [*before, *keys])

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def copy_on_write(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted(self.tables)))
        logical = data.draw(st.integers(0, len(self.tables[request]) - 1))
        block = self.tables[request][logical]
        if len(self.owners(block)) < 2 or not self.pool.num_free:
            with pytest.raises(PoolError):
                self.pool.copy_on_write(request, logical)
            return
        old, new = self.pool.copy_on_write(request, logical)
        assert old == block
        assert not self.owners(new)
        self.content.pop(new, None)
        assert set(self.pool.drain_evicted()) <= {new}
        self.tables[request][logical] = new

    @rule(request=REQUESTS)
    def free(self, request: int) -> None:
        if request not in self.tables:
            with pytest.raises(PoolError):
                self.pool.free(request)
            return
        assert self.pool.free(request) == tuple(self.tables.pop(request))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def retire(self, data: st.DataObject) -> None:
        """A request ends with all its blocks published: they stay cached."""
        request = data.draw(st.sampled_from(sorted(self.tables)))
        for logical, block in enumerate(self.tables[request]):
            if block not in self.content:
                self.pool.publish(request, logical, [None] * logical + [self.next_key])
                self.content[block] = self.next_key
                self.next_key += 1
        self.free(request)

    @rule(request=REQUESTS)
    def allocate_all(self, request: int) -> None:
        """Takes every block that can be had, so that cached ones are evicted."""
        self.allocate(request, self.pool.num_free)

    @invariant()
    def agrees_with_the_model(self) -> None:
        self.pool.check_integrity()
        assert {r: list(self.pool.table(r)) for r in self.pool.owners} == self.tables
        owned = {block for table in self.tables.values() for block in table}
        assert self.pool.num_free == BLOCKS - len(owned)
        assert self.pool.num_cached == len(set(self.content) - owned)
        found: dict[int, int] = {}
        for block, key in self.content.items():
            assert self.pool.lookup([key]) == [found.setdefault(key, block)]
        for block in owned:
            assert self.pool.other_owners(block) == len(self.owners(block)) - 1

    def teardown(self) -> None:
        for request in list(self.tables):
            self.pool.free(request)
        assert self.pool.num_free == BLOCKS


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=40 * TIMES, stateful_step_count=40, deadline=None)
