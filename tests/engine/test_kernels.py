"""Kernels against the dense definition, and the definition against arithmetic by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import Case, make_step

from experiment.engine.kernels import KERNELS, Kernel, gather, reference_kernel

OTHERS = [kernel for name, kernel in KERNELS.items() if name != "reference"]
TOLERANCE = 1e-5
CASES = {
    "one-token contexts": Case(((0, 1), (0, 1), (0, 1)), 4),
    "first chunks of ragged lengths": Case(((0, 7), (0, 1), (0, 13), (0, 2)), 4),
    "decoding at ragged contexts": Case(((6, 1), (1, 1), (30, 1)), 4),
    "contexts that end with a block": Case(((0, 4), (3, 1), (4, 4), (7, 1)), 4),
    "contexts that begin a block": Case(((4, 1), (8, 1), (4, 5)), 4),
    "chunks behind earlier positions": Case(((5, 3), (1, 9), (16, 2), (3, 4)), 4),
    "blocks of one slot": Case(((5, 3), (0, 4), (6, 1)), 1),
    "one slab each": Case(((5, 3), (0, 4), (6, 1)), 64),
    "grouped heads": Case(((5, 3), (0, 4), (6, 1)), 4, heads=6, kv_heads=2),
    "one head for all": Case(((5, 3), (0, 4), (6, 1)), 3, heads=4, kv_heads=1),
}


def test_there_is_a_kernel_to_compare() -> None:
    assert OTHERS


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("kernel", OTHERS)
def test_a_kernel_gives_the_reference(kernel: Kernel, case: Case) -> None:
    step = make_step(case)
    ours = kernel(step.q, step.kv, step.inputs, step.scale)
    expected = reference_kernel(step.q, step.kv, step.inputs, step.scale)
    assert not expected.isnan().any()
    torch.testing.assert_close(ours, expected, atol=TOLERANCE, rtol=0)


@settings(max_examples=60)
@given(
    sequences=st.lists(
        st.tuples(st.integers(0, 20), st.integers(1, 12)), min_size=1, max_size=5
    ).map(tuple),
    block_size=st.integers(1, 9),
    groups=st.sampled_from([(4, 4), (4, 2), (3, 1)]),
    seed=st.integers(0, 1000),
)
def test_a_kernel_gives_the_reference_for_random_steps(
    sequences: tuple[tuple[int, int], ...], block_size: int, groups: tuple[int, int], seed: int
) -> None:
    step = make_step(Case(sequences, block_size, *groups), seed)
    expected = reference_kernel(step.q, step.kv, step.inputs, step.scale)
    for kernel in OTHERS:
        ours = kernel(step.q, step.kv, step.inputs, step.scale)
        torch.testing.assert_close(ours, expected, atol=TOLERANCE, rtol=0)


def test_the_reference_is_softmax_of_scaled_products_over_what_came_before() -> None:
    """One head, three positions in two blocks; the tensors are laid out by hand."""
    step = make_step(Case(((1, 2),), 2, heads=1, kv_heads=1))
    first, second = step.tables[0]
    keys = torch.stack([step.kv[0, first, 0, 0], step.kv[0, first, 0, 1], step.kv[0, second, 0, 0]])
    values = torch.stack(
        [step.kv[1, first, 0, 0], step.kv[1, first, 0, 1], step.kv[1, second, 0, 0]]
    )
    out = reference_kernel(step.q, step.kv, step.inputs, 0.5)
    for row, seen in ((0, 2), (1, 3)):
        weights = torch.softmax(0.5 * keys[:seen] @ step.q[row, 0], 0)
        torch.testing.assert_close(out[row, 0], weights @ values[:seen], atol=1e-6, rtol=0)


def test_gather_reads_in_logical_order_and_stops_at_the_context() -> None:
    step = make_step(Case(((0, 5),), 2, kv_heads=2))
    keys, values = gather(step.kv, step.inputs.sequences[0])
    assert keys.shape == values.shape == (2, 5, 8)
    for position in range(5):
        block, offset = step.tables[0][position // 2], position % 2
        assert torch.equal(keys[:, position], step.kv[0, block, :, offset])
        assert torch.equal(values[:, position], step.kv[1, block, :, offset])


@pytest.mark.parametrize("half", [0, 1], ids=["key", "value"])
@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_a_stale_read_shows_in_every_query_that_sees_the_slot(kernel: Kernel, half: int) -> None:
    step = make_step(Case(((4, 3), (0, 5)), 4))
    step.kv[half, step.tables[0][1], :, 1] = float("nan")  # position 5 of the first sequence
    out = kernel(step.q, step.kv, step.inputs, step.scale)
    spoilt = out.isnan().flatten(1).any(1).tolist()
    assert all(spoilt[1:3])
    assert not any(spoilt[3:])  # the other sequence


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_a_wrong_table_changes_the_result(kernel: Kernel) -> None:
    step = make_step(Case(((7, 1), (7, 1)), 4))
    before = kernel(step.q, step.kv, step.inputs, step.scale)
    step.inputs.sequences[0].table[0] = step.tables[1][0]
    after = kernel(step.q, step.kv, step.inputs, step.scale)
    assert not torch.allclose(before[0], after[0])
    assert torch.equal(before[1], after[1])
