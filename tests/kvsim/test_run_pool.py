"""The pool of runs is the block pool: the same blocks, the same order, under any requests."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sweeps import TIMES

from kvsim.core.blocks import BlockPool, PoolError
from kvsim.core.request import Keys
from kvsim.sim.fast.run_pool import RunPool
from kvsim.traces.hash_keys import HashKeys

BLOCKS = 14


class BothPools(RuleBasedStateMachine):
    """Requests begin with what is found, fill blocks, and give them back, in both pools alike."""

    def __init__(self) -> None:
        super().__init__()
        self.slow, self.fast = BlockPool(BLOCKS, 2), RunPool(BLOCKS, 2)
        self.keys: dict[int, Keys] = {}
        self.ended: dict[int, Keys] = {}
        self.published: dict[int, int] = {}
        self.step = 0
        self.hash_size = 0

    @initialize(hash_size=st.sampled_from([0, 1, 3, 4, 6]))
    def choose_keys(self, hash_size: int) -> None:
        self.hash_size = hash_size

    def keys_of(self, request: int, group: int, prompt: int) -> Keys:
        """Prompts of a group begin alike; the last hash block of every third one is its own."""
        if not self.hash_size:
            return lambda count: [
                (group, i) if 2 * i < prompt else (group, request, i) for i in range(count)
            ]
        ids = [100 * group + i for i in range(-(-prompt // self.hash_size))]
        if not request % 3:
            ids[-1] = 1000 + request
        return HashKeys(request, prompt, tuple(ids), self.hash_size, 2)

    @rule(
        group=st.sampled_from([0, 0, 1]),
        prompt=st.sampled_from([14, 14, 9, 5, 1]),
        asked=st.sampled_from([0, 7, 3]),
    )
    def begin(self, group: int, prompt: int, asked: int) -> None:
        request = self.step = self.step + 1
        self.begin_with(request, self.keys_of(request, group, prompt), asked)

    @precondition(lambda self: self.ended)
    @rule(data=st.data(), asked=st.integers(0, 7))
    def come_back(self, data: st.DataObject, asked: int) -> None:
        """As after a preemption: some of its own blocks may be there still."""
        request = data.draw(st.sampled_from(sorted(self.ended)))
        self.step += 1
        self.begin_with(request, self.ended.pop(request), asked)

    def begin_with(self, request: int, keys: Keys, asked: int) -> None:
        hits = [pool.lookup(keys(asked)) for pool in (self.slow, self.fast)]
        slow, fast = hits
        assert list(slow) == list(fast)
        assert self.slow.count_cached(slow) == self.fast.count_cached(fast)
        found = [Counter[tuple[int, int]](), Counter[tuple[int, int]]()]
        for pool, mine, count in zip((self.slow, self.fast), hits, found, strict=True):
            for publisher, step, blocks in pool.origins(mine):
                count[publisher, step] += blocks
        assert found[0] == found[1]
        if slow:
            self.slow.share(request, slow)
            self.fast.share(request, fast)
        elif self.slow.num_free:
            assert self.slow.allocate(request, 1) == self.fast.allocate(request, 1)
        else:
            return
        self.keys[request], self.published[request] = keys, len(slow)

    @precondition(lambda self: self.keys)
    @rule(data=st.data(), more=st.integers(0, 6), fill=st.integers(0, 6))
    def go_on(self, data: st.DataObject, more: int, fill: int) -> None:
        """More blocks, and keys for some of those that have none."""
        request = data.draw(st.sampled_from(sorted(self.keys)))
        self.step += 1
        more = min(more, self.slow.num_free)
        assert self.slow.allocate(request, more) == self.fast.allocate(request, more)
        full = min(self.published[request] + fill, len(self.slow.table(request)))
        for pool in (self.slow, self.fast):
            pool.publish(request, self.published[request], self.keys[request](full), self.step)
        self.published[request] = full

    @precondition(lambda self: self.keys and self.slow.num_free)
    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        requests = data.draw(
            st.lists(st.sampled_from(sorted(self.keys)), max_size=self.slow.num_free)
        )
        self.slow.append(requests)
        self.fast.append(requests)

    @precondition(lambda self: self.keys)
    @rule(data=st.data(), kept=st.integers(0, 3))
    def lose(self, data: st.DataObject, kept: int) -> None:
        """What is published now is not written any more: the request gives way in the same step."""
        request = data.draw(st.sampled_from(sorted(self.keys)))
        before = self.published[request]
        self.go_on_with(request)
        for pool in (self.slow, self.fast):
            pool.retract(request, min(before + kept, len(pool.table(request))))
        self.end(request)

    def go_on_with(self, request: int) -> None:
        full = len(self.slow.table(request))
        for pool in (self.slow, self.fast):
            pool.publish(request, self.published[request], self.keys[request](full), self.step)

    @precondition(lambda self: self.keys)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.end(data.draw(st.sampled_from(sorted(self.keys))))

    def end(self, request: int) -> None:
        self.ended[request] = self.keys.pop(request)
        slow, fast = (pool.release(request) for pool in (self.slow, self.fast))
        assert [list(blocks) for blocks in slow] == [list(blocks) for blocks in fast]

    @invariant()
    def are_alike(self) -> None:
        slow, fast = self.slow, self.fast
        fast.check_integrity()
        assert slow.drain_evicted() == fast.drain_evicted()
        assert slow.cached == fast.cached
        assert {r: list(slow.table(r)) for r in slow.owners} == {
            r: list(fast.table(r)) for r in fast.owners
        }
        assert (slow.num_free, slow.num_cached) == (fast.num_free, fast.num_cached)
        assert slow.extra_references == fast.extra_references


TestBothPools = BothPools.TestCase
TestBothPools.settings = settings(max_examples=50 * TIMES, stateful_step_count=40, deadline=None)


def test_what_a_pool_of_runs_cannot_do_is_refused() -> None:
    pool = RunPool(12, 2)
    pool.allocate(3, 2)
    with pytest.raises(PoolError, match="only begin with"):
        pool.share(3, pool.lookup("a"))
    with pytest.raises(PoolError, match="has no 3 blocks"):
        pool.publish(3, 0, "xyz")
