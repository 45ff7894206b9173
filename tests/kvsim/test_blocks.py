"""The block pool: what it hands out, what it takes back, and what it refuses.

Any sequence of operations is compared with a plain model in test_pool_machine.py.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.core.blocks import BlockPool, Location, OutOfBlocksError, PoolError, blocks_needed


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
    assert list(pool.table(9)) == []


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


def test_locate_names_logical_block_physical_block_and_offset() -> None:
    pool = BlockPool(6, 4)
    pool.allocate(1, 1)
    pool.allocate(2, 2)
    pool.allocate(1, 2)
    assert pool.locate(1, 3) == Location(0, 0, 3)
    assert pool.locate(1, 4) == Location(1, 3, 0)
    assert pool.locate(1, 11) == Location(2, 4, 3)


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
