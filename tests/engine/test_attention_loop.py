"""The loops of attention in vectors: exact, and a slot's place plays no role."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

numba = pytest.importorskip("numba")

from experiment.engine.cpu.attention_loop import add_run, score_run, vectors_of  # noqa: E402
from experiment.engine.cpu.vectors import LANES, other_processor  # noqa: E402

pytestmark = pytest.mark.skipif(
    LANES != 16 or other_processor(), reason="the loops are for processors with AVX-512"
)
SLOTS = 37
HEADS = (32, 64, 80, 96, 128)


@numba.njit  # type: ignore[untyped-decorator]
def scores_of(query: Any, rows: Any, scale: Any, found: Any) -> None:
    score_run(
        vectors_of(len(query)), np.int64(query.ctypes.data), np.int64(rows.ctypes.data), len(rows),
        scale, np.int64(found.ctypes.data),
    )  # fmt: skip


@numba.njit  # type: ignore[untyped-decorator]
def values_of(weights: Any, rows: Any, acc: Any) -> None:
    add_run(
        vectors_of(len(acc)), np.int64(weights.ctypes.data), np.int64(rows.ctypes.data), len(rows),
        np.int64(acc.ctypes.data),
    )  # fmt: skip


def drawn(dim: int) -> tuple[Any, Any, Any]:
    """A query [dim], rows [SLOTS, dim] and weights [SLOTS]."""
    draw = np.random.default_rng(dim)
    sizes = (dim, (SLOTS, dim), SLOTS)
    query, rows, weights = (draw.standard_normal(size).astype(np.float32) for size in sizes)
    return query, rows, weights


@pytest.mark.parametrize("dim", HEADS)
@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 32, SLOTS])
def test_scores_are_those_of_double_precision_and_no_other_is_touched(dim: int, count: int) -> None:
    query, rows, _ = drawn(dim)
    found = np.full(SLOTS, 7, np.float32)
    scores_of(query, rows[:count], np.float32(0.125), found)
    exact = 0.125 * (rows.astype(np.float64) @ query.astype(np.float64))
    np.testing.assert_allclose(found[:count], exact[:count], rtol=1e-5, atol=2e-6)
    assert (found[count:] == 7).all()


@pytest.mark.parametrize("dim", [32, 64])
def test_a_score_is_the_same_to_the_bit_wherever_its_slot_lies(dim: int) -> None:
    """A block of one slot, and the 16th of a slab."""
    query, rows, _ = drawn(dim)
    found, alone = np.empty(SLOTS, np.float32), np.empty(1, np.float32)
    scores_of(query, rows, np.float32(0.3), found)
    for slot in range(SLOTS):
        scores_of(query, rows[slot : slot + 1], np.float32(0.3), alone)
        assert alone[0] == found[slot]


@pytest.mark.parametrize("dim", HEADS)
def test_values_are_added_in_the_order_of_slots(dim: int) -> None:
    _, rows, weights = drawn(dim)
    whole, parts = np.ones((2, dim), np.float32)
    values_of(weights, rows, whole)
    exact = 1 + weights.astype(np.float64) @ rows.astype(np.float64)
    np.testing.assert_allclose(whole, exact, rtol=1e-5, atol=1e-5)
    for begin, end in ((0, 3), (3, 3), (3, 20), (20, SLOTS)):
        values_of(weights[begin:end], rows[begin:end], parts)
    assert (parts == whole).all()


def test_what_is_not_written_shows() -> None:
    """NaN of one slot stays in its score, and in every number of the values."""
    query, rows, weights = drawn(64)
    rows[18] = np.nan
    found, acc = np.empty(SLOTS, np.float32), np.zeros(64, np.float32)
    scores_of(query, rows, np.float32(1), found)
    assert np.flatnonzero(np.isnan(found)).tolist() == [18]
    values_of(weights, rows, acc)
    assert np.isnan(acc).all()


@pytest.mark.parametrize(
    ("dim", "vectors"), [(8, 0), (64, 4), (80, 5), (128, 8), (16, 0), (144, 0), (72, 0)]
)
def test_heads_of_whole_vectors_that_stay_in_registers_are_taken(dim: int, vectors: int) -> None:
    assert vectors_of(dim) == vectors
