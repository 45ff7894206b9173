"""The block pool: what it hands out, what it takes back, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.core.blocks import (
    BlockPool,
    Location,
    OutOfBlocksError,
    PoolError,
    blocks_needed,
    locate,
)


def snapshot(pool: BlockPool) -> tuple[object, ...]:
    """Everything that a failed operation must leave as it was."""
    tables = {request: tuple(pool.table(request)) for request in pool.owners}
    refs = [pool.references(block) for block in range(pool.num_blocks)]
    return tables, refs, tuple(pool._free())


@given(tokens=st.integers(0, 500), size=st.integers(1, 40))
def test_blocks_needed_is_the_fewest_that_hold_the_tokens(tokens: int, size: int) -> None:
    count = blocks_needed(tokens, size)
    assert (count - 1) * size < tokens <= count * size


@pytest.mark.parametrize(("blocks", "size"), [(0, 4), (4, 0), (-1, 4), (4, -1)])
def test_a_pool_without_blocks_or_slots_is_refused(blocks: int, size: int) -> None:
    with pytest.raises(ValueError, match="pool needs blocks"):
        BlockPool(blocks, size)


def test_allocation_hands_out_free_blocks_in_queue_order_and_appends_to_the_table() -> None:
    pool = BlockPool(6, 4)
    assert pool.allocate(7, 2) == (0, 1)
    assert pool.allocate(8, 1) == (2,)
    assert pool.allocate(7, 1) == (3,)
    assert list(pool.table(7)) == [0, 1, 3]
    assert (pool.num_free, set(pool.owners)) == (2, {7, 8})
    assert [pool.references(block) for block in range(6)] == [1, 1, 1, 1, 0, 0]
    pool.check_integrity()


def lost(pool: BlockPool) -> None:
    pool.table(7).pop()  # type: ignore[attr-defined]


def repeated(pool: BlockPool) -> None:
    pool.table(7)[0] = 1  # type: ignore[index]


def beyond(pool: BlockPool) -> None:
    pool.table(7)[0] = 99_999  # type: ignore[index]


def free_twice(pool: BlockPool) -> None:
    pool._stack[4] = pool._stack[5]


def unowned(pool: BlockPool) -> None:
    pool._extra += 1


@pytest.mark.parametrize("damage", [lost, repeated, beyond, free_twice, unowned])
def test_the_integrity_check_finds(damage: Callable[[BlockPool], None]) -> None:
    pool = BlockPool(6, 4)
    pool.allocate(7, 2)
    pool.allocate(8, 1)
    pool.check_integrity()
    damage(pool)
    with pytest.raises(PoolError):
        pool.check_integrity()


def test_allocating_nothing_makes_no_owner() -> None:
    pool = BlockPool(2, 4)
    assert pool.allocate(1, 0) == ()
    assert pool.owners == ()
    with pytest.raises(PoolError):
        pool.free(1)


def test_a_request_without_blocks_has_an_empty_table() -> None:
    assert list(BlockPool(2, 4).table(9)) == []


@pytest.mark.parametrize("count", [3, 100])
def test_out_of_blocks_changes_nothing(count: int) -> None:
    pool = BlockPool(4, 4)
    pool.allocate(1, 2)
    before = snapshot(pool)
    with pytest.raises(OutOfBlocksError):
        pool.allocate(1, count)
    with pytest.raises(OutOfBlocksError):
        pool.allocate(2, count)
    assert snapshot(pool) == before


def test_a_negative_count_is_refused_and_changes_nothing() -> None:
    pool = BlockPool(4, 4)
    pool.allocate(1, 2)
    before = snapshot(pool)
    with pytest.raises(PoolError):
        pool.allocate(1, -1)
    assert snapshot(pool) == before


def test_freed_blocks_are_the_first_to_be_used_again_in_their_order() -> None:
    pool = BlockPool(5, 4)
    pool.allocate(0, 1)
    pool.allocate(1, 3)
    assert pool.free(1) == (1, 2, 3)
    assert pool.allocate(2, 4) == (1, 2, 3, 4)


def test_double_free_is_an_error_that_changes_nothing() -> None:
    pool = BlockPool(4, 4)
    pool.allocate(1, 2)
    pool.allocate(2, 1)
    pool.free(1)
    before = snapshot(pool)
    with pytest.raises(PoolError, match="holds no blocks"):
        pool.free(1)
    assert snapshot(pool) == before
    pool.check_integrity()


def test_locate_names_logical_block_physical_block_and_offset() -> None:
    pool = BlockPool(6, 4)
    pool.allocate(1, 1)
    pool.allocate(2, 2)
    pool.allocate(1, 2)
    assert list(pool.table(1)) == [0, 3, 4]
    assert pool.locate(1, 0) == Location(0, 0, 0)
    assert pool.locate(1, 3) == Location(0, 0, 3)
    assert pool.locate(1, 4) == Location(1, 3, 0)
    assert pool.locate(1, 11) == Location(2, 4, 3)


@pytest.mark.parametrize("position", [-1, 12, 1000])
def test_locate_outside_of_the_table_is_an_error(position: int) -> None:
    with pytest.raises(PoolError, match="outside"):
        locate([5, 2, 7], position, 4)


def test_locate_for_a_stranger_is_an_error() -> None:
    with pytest.raises(PoolError):
        BlockPool(2, 4).locate(3, 0)


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

    assert read(0, 20) == 20
    assert [read(0, position) for position in range(25)] == list(range(25))
    assert [read(1, position) for position in range(12)] == list(range(32, 44))


def lose_a_block(pool: BlockPool) -> None:
    pool._top += 1


def queue_a_block_twice(pool: BlockPool) -> None:
    pool._stack[-1] = pool._free()[0]


def queue_an_owned_block(pool: BlockPool) -> None:
    pool._stack[-1] = pool.table(1)[0]


def queue_a_block_that_does_not_exist(pool: BlockPool) -> None:
    pool._stack[-1] = pool.num_blocks


def lengthen_the_stack(pool: BlockPool) -> None:
    pool._stack.append(pool.num_blocks)
    pool._top += 1


def own_a_block_that_does_not_exist(pool: BlockPool) -> None:
    pool._tables[1].append(pool.num_blocks)


def own_a_block_of_another(pool: BlockPool) -> None:
    pool._tables[1][0] = pool._tables[2][0]


def own_a_block_twice(pool: BlockPool) -> None:
    pool._tables[1].append(pool._tables[1][0])


def own_a_free_block(pool: BlockPool) -> None:
    pool._tables[1].append(pool._free()[0])


def drop_a_table(pool: BlockPool) -> None:
    del pool._tables[2]


def forget_a_key(pool: BlockPool) -> None:
    del pool._keys[pool.table(2)[0]]


def give_a_free_block_a_key(pool: BlockPool) -> None:
    pool._keys[pool._free()[0]], pool._by_key["other"] = "other", pool._free()[0]


def count_a_reference_too_many(pool: BlockPool) -> None:
    pool._extra_owners[pool.table(1)[0]] = 1


def count_a_reference_too_few(pool: BlockPool) -> None:
    del pool._extra_owners[pool.table(1)[2]]


@pytest.mark.parametrize(
    "damage",
    [
        lose_a_block,
        lengthen_the_stack,
        queue_a_block_twice,
        queue_an_owned_block,
        queue_a_block_that_does_not_exist,
        own_a_block_that_does_not_exist,
        own_a_block_of_another,
        own_a_block_twice,
        own_a_free_block,
        drop_a_table,
        forget_a_key,
        give_a_free_block_a_key,
        count_a_reference_too_many,
        count_a_reference_too_few,
    ],
)
def test_check_integrity_catches(damage: Callable[[BlockPool], None]) -> None:
    pool = BlockPool(8, 4)
    pool.allocate(1, 2)
    pool.allocate(2, 2)
    pool.allocate(3, 1)
    pool.share(1, pool.table(3), (3,))
    pool.publish(2, 0, ["key"])
    pool.check_integrity()
    damage(pool)
    with pytest.raises(PoolError):
        pool.check_integrity()


@given(
    blocks=st.integers(1, 12),
    operations=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=40),
)
def test_whatever_is_done_each_block_has_one_place(
    blocks: int, operations: list[tuple[int, int]]
) -> None:
    """Count 0 stands for freeing. An operation that fails changes nothing."""
    pool = BlockPool(blocks, 4)
    for request, count in operations:
        before, free = snapshot(pool), pool.num_free
        try:
            if count:
                assert len(pool.allocate(request, count)) == count
                assert pool.num_free == free - count
            else:
                freed = pool.free(request)
                assert pool.num_free == free + len(freed)
        except PoolError:
            assert snapshot(pool) == before
        pool.check_integrity()
    held = [block for request in pool.owners for block in pool.table(request)]
    assert sorted(held + list(pool._free())) == list(range(blocks))
