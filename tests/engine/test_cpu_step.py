"""Writing and attention in one call: the same numbers as one after the other, where it is right."""

from __future__ import annotations

import pytest
import torch

from experiment.engine.attention.kernels import numba_fused, numba_kernel, numba_scatter
from experiment.engine.cpu import compiled
from experiment.engine.cpu.layer_step import apart, write_and_attend
from experiment.engine.kv_pool import KVPool, scatter
from experiment.engine.step_inputs import StepInputs, build_inputs
from experiment.gpucheck.kernel_cases import Case, make_step
from kvsim.core.step import Chunk, StepPlan
from kvsim.sizing.geometry import KVGeometry

CPU = torch.device("cpu")


def new_rows(tokens: int, heads: int, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of a step, cut out of a wider tensor as a model's one product leaves them."""
    wide = torch.randn(tokens, 3, heads, dim, generator=torch.Generator().manual_seed(7))
    return wide[:, 1], wide[:, 2]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("block_size", [1, 16, 512])
@pytest.mark.parametrize("heads", [(12, 12), (4, 2), (3, 1)])
def test_it_gives_what_one_after_the_other_gives(
    heads: tuple[int, int], block_size: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "_WORTH_A_THREAD", 0 if threads > 1 else 1 << 60)
    monkeypatch.setattr(compiled, "_threads", lambda: threads)
    step = make_step(Case(((200, 1), (9, 1), (20, 3), (0, 1)), block_size, *heads, dim=64))
    keys, values = new_rows(step.q.shape[0], heads[1], 64)
    apart_kv, together_kv = step.kv.clone(), step.kv.clone()
    scatter(apart_kv, step.inputs, keys, values)
    expected = numba_kernel(step.q, apart_kv, step.inputs, step.scale)
    for _ in range(2):  # the second layer finds what the first has put together
        ours = write_and_attend(step.q, keys, values, together_kv, step.inputs, step.scale)
        assert torch.equal(ours, expected)
        assert torch.equal(together_kv.nan_to_num(9.0), apart_kv.nan_to_num(9.0))


def inputs_of(tables: dict[int, list[int]], lengths: dict[int, int], block_size: int) -> StepInputs:
    """One decoding step: the last of so many tokens of each request."""
    chunks = tuple(Chunk(r, n - 1, 1, samples=True) for r, n in lengths.items())
    tokens = {r: list(range(n)) for r, n in lengths.items()}
    return build_inputs(StepPlan(0, chunks=chunks), tokens, tables, block_size, CPU)


def test_blocks_that_are_only_read_may_be_shared() -> None:
    assert apart(inputs_of({0: [5, 1], 1: [5, 2]}, {0: 6, 1: 7}, 4))


def test_a_block_that_is_written_may_not_be_read_by_another_sequence() -> None:
    assert not apart(inputs_of({0: [5], 1: [5, 2]}, {0: 4, 1: 7}, 4))


def test_such_a_step_writes_everything_before_it_reads() -> None:
    """The second request reads the slot that the first one writes in the same step."""
    pool = KVPool(KVGeometry(1, 2, 8, 4), 8, 4, torch.float32, CPU)
    pool.scatter = numba_scatter
    inputs = inputs_of({0: [5], 1: [5, 2]}, {0: 4, 1: 7}, 4)
    keys, values = new_rows(2, 2, 8)
    q = torch.randn(2, 2, 8)
    assert numba_fused(q, keys, values, pool, 0, inputs, 0.3) is None
    assert torch.isnan(pool.layer(0)[0, 5]).all()  # nothing was done


def test_a_pool_that_is_written_otherwise_is_left_alone() -> None:
    pool = KVPool(KVGeometry(1, 2, 8, 4), 8, 4, torch.float32, CPU)
    inputs = inputs_of({0: [5], 1: [3]}, {0: 4, 1: 3}, 4)
    keys, values = new_rows(2, 2, 8)
    q = torch.randn(2, 2, 8)
    assert numba_fused(q, keys, values, pool, 0, inputs, 0.3) is None
    pool.scatter = numba_scatter
    assert numba_fused(q, keys, values, pool, 0, inputs, 0.3) is not None
