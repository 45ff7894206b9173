"""What a kernel sends for is what it reads next: the addresses, one by one."""

from __future__ import annotations

import numpy as np
import pytest

numba = pytest.importorskip("numba")

from experiment.engine.cpu.attention_kernel import _place, _run_after  # noqa: E402

BLOCKS, HEADS, SIZE, DIM = 6, 3, 4, 16
TABLE = np.array([4, 1, 5], np.int32)
KEYS = np.zeros((BLOCKS, HEADS, SIZE, DIM), np.float32)
LAST_HEAD, AFTER = HEADS - 1, 12345


def address(block: int, head: int, slot: int) -> int:
    return int(KEYS[block, head, slot].ctypes.data)


def after(h: int, at: int, run: int, end: int = 12) -> int:
    """Of a task with all heads, at position ``at``, which has ``run`` slots of its block left."""
    return int(_run_after(KEYS, TABLE, 0, h, HEADS, at, run, end, AFTER))


def test_a_position_is_found_through_the_table() -> None:
    assert _place(KEYS, TABLE, 2, 0) == address(4, 2, 0)
    assert _place(KEYS, TABLE, 1, 6) == address(1, 1, 2)


def test_behind_a_head_comes_the_same_run_of_the_next_one() -> None:
    assert after(0, at=4, run=4) == address(1, 1, 0)
    assert after(1, at=6, run=2) == address(1, 2, 2)


def test_behind_the_last_head_comes_the_first_one_in_the_next_block_of_the_table() -> None:
    assert after(LAST_HEAD, at=0, run=4) == address(1, 0, 0)
    assert after(LAST_HEAD, at=6, run=2) == address(5, 0, 0)


def test_behind_the_last_run_comes_what_the_caller_names() -> None:
    assert after(LAST_HEAD, at=8, run=4) == AFTER
    assert after(LAST_HEAD, at=0, run=4, end=4) == AFTER


def test_a_task_of_some_heads_begins_again_with_its_own_first() -> None:
    first, heads = 1, 2
    found = _run_after(KEYS, TABLE, first, heads - 1, heads, 0, 4, 12, AFTER)
    assert found == address(1, first, 0)
    assert _run_after(KEYS, TABLE, first, 0, heads, 0, 4, 12, AFTER) == address(4, first + 1, 0)
