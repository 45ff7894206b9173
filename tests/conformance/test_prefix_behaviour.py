"""13, 14, 16, 17, 30 and 32: what the prefix cache finds, counts and tells, and its reset."""

from __future__ import annotations

import random

import pytest
from driver import Driver, ops
from tiny_engine import make_engine, solo

from experiment.engine.engine import Engine
from kvsim.accounting.ledger import Ledger, PoolShape
from kvsim.core.prefix import KeyChain
from kvsim.core.step import BlockOp, OpKind

STEM = list(range(12))


def test_14_a_key_depends_on_all_tokens_before_it_and_on_the_salt_alone() -> None:
    keys = KeyChain(4).keys(STEM, 3)
    other = KeyChain(4).keys([9, *STEM[1:]], 3)
    assert not set(keys) & set(other)
    assert not set(keys) & set(KeyChain(4, "salt").keys(STEM, 3))
    # The hash has no seed that differs from process to process.
    assert keys[0].hex() == "30c193af8ce814b475d0afaac6d21bdc"


def test_16_hits_are_counted_in_tokens_and_no_query_is_not_a_share_of_zero() -> None:
    driver = Driver(20, 4)
    stats = driver.scheduler.stats
    assert stats.hit_share is None
    driver.add(0, STEM, 1)
    driver.run()
    assert (stats.queried, stats.hit_share) == (12, 0.0)
    driver.add(1, [*STEM[:8], 50, 51], 1)
    driver.run()
    assert (stats.queried, stats.hit_cross, stats.hit_share) == (22, 8, 8 / 22)


def test_16_what_a_preempted_request_finds_again_is_counted_apart() -> None:
    driver = Driver(5, 4)
    driver.add(0, STEM[:8], 6)
    driver.add(1, list(range(100, 108)), 6)
    plans = driver.run()
    assert sum(len(plan.preempted) for plan in plans) > 0
    stats = driver.scheduler.stats
    assert (stats.queried, stats.hit_share) == (16, 0.0)
    assert stats.requeried > 0
    assert stats.hit_own > 0


def test_17_the_operations_of_the_plans_replay_to_the_same_cache() -> None:
    evicted = 0
    for seed in range(12):
        draw = random.Random(seed)
        driver = Driver(12, 4, max_num_batched_tokens=draw.choice((7, 64)))
        ledger = Ledger(PoolShape(12, 4, 1))
        for request in range(8):
            tail = [draw.randrange(50, 60) for _ in range(draw.randint(1, 9))]
            driver.add(request, STEM[: draw.choice((0, 4, 8, 12))] + tail, draw.randint(1, 9))
        while driver.scheduler.has_work:
            plan = driver.scheduler.schedule()
            ledger.apply(plan)
            evicted += len(ops(plan, OpKind.EVICT))
            assert ledger.cached == set(driver.pool.cached)
            for chunk in plan.chunks:
                if chunk.samples:
                    driver.tokens[chunk.request].append(draw.randrange(50, 60))
            driver.scheduler.complete(plan)
        assert driver.scheduler.reset_prefix_cache()
        if driver.scheduler.has_work:
            ledger.apply(driver.scheduler.schedule())
        assert ledger.cached == set(driver.pool.cached) == set()
    assert evicted > 0


def test_30_a_hit_costs_nothing_of_the_token_budget() -> None:
    driver = Driver(20, 4, max_num_batched_tokens=5)
    driver.add(0, STEM, 1)
    driver.run()
    driver.add(1, [*STEM, 60, 61], 1)  # 12 are found, 2 are left
    driver.add(2, [70, 71, 72], 1)
    plan = driver.step()
    assert [(c.request, c.start, c.count) for c in plan.chunks] == [(1, 12, 2), (2, 0, 3)]
    assert plan.tokens == 5


def test_32_in_the_same_step_only_what_that_step_writes_is_found() -> None:
    """The budget fills two blocks and a half of the first prompt, and leaves nothing: then, in
    the next step, the second prompt finds what was written before and what is written now."""
    driver = Driver(20, 4, max_num_batched_tokens=10)
    driver.add(0, STEM, 2)
    driver.add(1, [*STEM, 60], 2)
    first, second = driver.step(), driver.step()
    assert [c.request for c in first.chunks] == [0]
    assert [(c.request, c.start, c.count) for c in second.chunks] == [(0, 10, 2), (1, 12, 1)]
    stats = driver.scheduler.stats
    assert (stats.hit_cross, stats.hit_batch) == (8, 4)


def test_32_a_block_that_the_step_leaves_unfilled_is_not_found() -> None:
    driver = Driver(20, 4, max_num_batched_tokens=13)
    driver.add(0, STEM[:11], 2)
    driver.add(1, [*STEM, 60], 2)
    plan = driver.step()
    assert [(c.request, c.start, c.count) for c in plan.chunks] == [(0, 0, 11), (1, 8, 2)]


PROMPT = list(range(1, 14))  # three full blocks of 4 and a token


@pytest.fixture
def engine() -> Engine:
    """A request has run over an empty cache of 8 blocks of 4."""
    engine = make_engine("gpt2", 8, 4, prefix_caching=True)
    engine.add(0, PROMPT, 2)
    return engine


def run(engine: Engine) -> None:
    while engine.scheduler.has_work:
        engine.step()


def test_reset_is_refused_while_a_block_is_in_use_and_changes_nothing(engine: Engine) -> None:
    engine.step()
    assert engine.scheduler.reset_prefix_cache() is False
    run(engine)
    assert engine.blocks.num_cached == 3


def test_reset_evicts_all_content_from_tables_and_tensors(engine: Engine) -> None:
    run(engine)
    assert engine.pool.written_slots() == 3 * 4
    cached = engine.blocks.cached
    assert engine.scheduler.reset_prefix_cache() is True
    plan = engine.execute().plan
    assert plan.ops == (BlockOp(OpKind.EVICT, None, cached),)
    assert (engine.blocks.num_cached, engine.blocks.num_free) == (0, 8)
    assert engine.pool.written_slots() == 0
    engine.blocks.check_integrity()


def test_after_a_reset_nothing_is_found_and_the_tokens_are_right(engine: Engine) -> None:
    run(engine)
    assert engine.scheduler.reset_prefix_cache()
    engine.add(1, PROMPT, 2)
    run(engine)
    assert engine.scheduler.stats.hit_cross == 0
    assert engine.generated(1) == solo("gpt2", PROMPT, 2)


def test_resetting_an_empty_cache_plans_nothing() -> None:
    engine = make_engine("gpt2", 4, 4, prefix_caching=True)
    assert engine.scheduler.reset_prefix_cache() is True
    assert not engine.scheduler.has_work
