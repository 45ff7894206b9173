"""1 to 12 and 15: blocks, their keys, and the order in which they are taken again."""

from __future__ import annotations

import pytest
from driver import Driver, ops

from kvsim.core.blocks import BlockPool, OutOfBlocksError
from kvsim.core.prefix import KeyChain
from kvsim.core.step import OpKind

PROMPT = list(range(3 * 16 + 7))


def owned(driver: Driver, request: int) -> list[int]:
    return list(driver.pool.table(request))


def test_01_full_blocks_of_a_prompt_get_chained_keys_and_the_partial_one_none() -> None:
    driver = Driver(10, 16)
    driver.add(0, PROMPT, 3)
    driver.step()
    assert owned(driver, 0) == [0, 1, 2, 3]
    assert driver.pool.extra_references == 0
    assert driver.found(PROMPT, 3) == [0, 1, 2]
    with pytest.raises(ValueError, match="not full"):
        KeyChain(16).keys(PROMPT, 4)
    assert driver.found(PROMPT[16:], 1) == []  # the same tokens behind another beginning


def test_02_a_second_request_shares_the_blocks_of_a_live_one() -> None:
    driver = Driver(10, 16)
    driver.add(0, PROMPT, 5)
    driver.step()
    driver.add(1, [*PROMPT[:48], 7, 7, 7], 5)
    plan = driver.step()
    assert ops(plan, OpKind.SHARE) == [(1, (0, 1, 2))]
    assert ops(plan, OpKind.ALLOCATE) == [(1, (4,))]
    assert [driver.pool.other_owners(block) for block in range(5)] == [1, 1, 1, 0, 0]


def test_03_partial_blocks_are_taken_again_first_and_of_a_prefix_the_tail() -> None:
    driver = Driver(10, 16)
    driver.add(0, PROMPT, 1)
    driver.run()
    assert [driver.pool.allocate(9, 1)[0] for _ in range(10)] == [3, 4, 5, 6, 7, 8, 9, 2, 1, 0]


def test_04_a_cached_block_is_found_after_its_owner_ended_and_leaves_the_queue() -> None:
    driver = Driver(10, 16)
    driver.add(0, PROMPT, 1)
    driver.run()
    assert driver.pool.num_cached == 3
    driver.add(1, PROMPT[:33], 2)
    driver.step()
    assert owned(driver, 1)[:2] == [0, 1]
    assert driver.pool.cached == (2,)
    taken = driver.pool.allocate(9, driver.pool.num_free)
    assert not set(taken) & {0, 1}


def test_05_the_least_recently_used_is_evicted_and_no_longer_found() -> None:
    driver = Driver(6, 4)
    first, second = list(range(9)), list(range(100, 109))
    for request, prompt in ((0, first), (1, second), (2, first)):  # the first is used again
        driver.add(request, prompt, 1)
        driver.run()
    assert driver.pool.cached == (*driver.found(second, 2)[::-1], *driver.found(first, 2)[::-1])
    tail = driver.found(second, 2)[1]
    driver.add(3, list(range(200, 211)), 1)  # three blocks: two free ones and the tail of second
    plans = driver.run()
    assert [op for plan in plans for op in ops(plan, OpKind.EVICT)] == [(None, (tail,))]
    assert len(driver.found(second, 2)) == 1
    assert len(driver.found(first, 2)) == 2
    driver.pool.allocate(9, 6)
    assert driver.found(first, 2) == driver.found(second, 2) == []


def hit_by_a_longer_request(blocks: int) -> tuple[Driver, tuple[object, ...]]:
    """Two blocks are cached; a request needs them and two more."""
    driver = Driver(blocks, 4)
    driver.add(0, list(range(8)), 1)
    driver.run()
    if blocks > 3:
        driver.pool.allocate(8, blocks - 3)
    before = (driver.pool.cached, driver.pool.num_free, driver.scheduler.stats.queried)
    driver.add(1, [*range(8), *range(50, 55)], 1)
    return driver, before


def test_07_hits_are_not_evicted_for_the_same_request() -> None:
    driver, _ = hit_by_a_longer_request(5)
    driver.pool.free(8)
    plan = driver.step()
    assert ops(plan, OpKind.SHARE) == [(1, (0, 1))]
    assert ops(plan, OpKind.EVICT) == []
    [(_, taken)] = ops(plan, OpKind.ALLOCATE)
    assert len({0, 1, *taken}) == 4


def test_08_a_request_that_finds_no_room_changes_nothing() -> None:
    driver, before = hit_by_a_longer_request(5)
    plan = driver.step()
    assert plan.chunks == plan.ops == ()
    stats = driver.scheduler.stats
    assert (driver.pool.cached, driver.pool.num_free, stats.queried) == before
    assert driver.pool.table(1) == ()
    assert driver.scheduler.waiting == (1,)


def test_09_a_cached_block_that_is_hit_is_counted_once() -> None:
    """Four blocks in all, two cached and hit, two free: it just fits."""
    driver = Driver(4, 4)
    driver.add(0, list(range(8)), 1)
    driver.run()
    driver.add(1, [*range(8), *range(50, 58)], 1)
    assert len(driver.step().chunks) == 1
    assert driver.pool.num_free == 4  # and has ended


def test_10_without_caching_nothing_is_keyed_found_or_kept() -> None:
    driver = Driver(10, 16, prefix_caching=False)
    for request in (0, 1):
        driver.add(request, PROMPT, 2)
    plans = driver.run()
    assert not any(ops(plan, OpKind.SHARE) for plan in plans)
    assert (driver.pool.num_cached, driver.found(PROMPT, 3)) == (0, [])
    with pytest.raises(OutOfBlocksError):  # the pool says so; the scheduler lets requests wait
        driver.pool.allocate(9, 11)


def test_11_decoding_takes_a_block_only_at_a_boundary_and_publishes_what_it_fills() -> None:
    driver = Driver(10, 4)
    driver.add(0, [1, 2, 3], 7)
    taken, found = [], []
    for _ in range(7):
        plan = driver.step()
        taken.append(sum(len(blocks) for _, blocks in ops(plan, OpKind.ALLOCATE)))
        found.append(len(driver.found(driver.tokens[0], len(driver.tokens[0]) // 4)))
    # Positions written after each step: 3, 4, ... 9.
    assert taken == [1, 0, 1, 0, 0, 0, 1]
    assert found == [0, 1, 1, 1, 1, 2, 2]


def test_12_of_two_equal_blocks_the_first_is_found_and_the_other_once_that_is_evicted() -> None:
    driver = Driver(10, 4)
    for request in (0, 1):  # their first block is filled by both at once, while decoding
        driver.add(request, [1, 2, 3], 6 - request)
    driver.step()
    driver.step()
    assert owned(driver, 0)[0] != owned(driver, 1)[0]
    kept = driver.found(driver.tokens[0], 1)
    assert kept == owned(driver, 0)[:1]
    other = owned(driver, 1)[:1]
    driver.run()
    assert driver.found(driver.tokens[0], 1) == kept
    assert driver.pool.cached == (*other, *driver.found(driver.tokens[0], 2)[::-1])
    driver.pool.share(2, other)
    driver.pool.allocate(3, driver.pool.num_free)
    assert driver.found(driver.tokens[0], 1) == other


def test_15_the_queue_keeps_its_order_and_count_whatever_is_taken_from_its_middle() -> None:
    pool = BlockPool(8, 4)
    pool.allocate(99, 8)
    pool.publish(99, 0, [f"key {block}" for block in range(8)])
    assert pool.num_free == 0
    pool.free(99)
    assert pool.cached == (7, 6, 5, 4, 3, 2, 1, 0)
    pool.share(1, [4, 6])
    assert (pool.cached, pool.num_free) == ((7, 5, 3, 2, 1, 0), 6)
    assert pool.allocate(2, 6) == (7, 5, 3, 2, 1, 0)  # drained
    assert pool.num_free == 0
    pool.free(1)
    pool.free(2)
    assert pool.num_free == 8
    assert sorted(pool.allocate(3, 8)) == list(range(8))
    pool.check_integrity()
