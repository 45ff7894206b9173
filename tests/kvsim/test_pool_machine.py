"""The block pool under random operations, beside a plain model of what it should hold."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sweeps import TIMES

from kvsim.core.blocks import BlockPool, OutOfBlocksError, PoolError

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
    def publish_what_is_not_there(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted(self.tables)))
        with pytest.raises(PoolError):
            self.pool.publish(request, 0, range(-1 - len(self.tables[request]), 0))

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

    @precondition(lambda self: not self.tables and len(self.content) > 2)
    @rule()
    def reset_cache(self) -> None:
        assert self.pool.reset_cache()
        self.content.clear()

    @precondition(lambda self: self.tables)
    @rule()
    def reset_cache_in_use(self) -> None:
        assert not self.pool.reset_cache()

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
