"""What a freed block holds: NaN where slots are counted, what it held where nobody looks."""

from __future__ import annotations

import pytest
import torch

from experiment.engine.kv_pool import KVPool
from kvsim.core.step import BlockOp, OpKind, StepPlan
from kvsim.sizing.geometry import KVGeometry


def freed(dtype: torch.dtype, kind: OpKind, poison_freed: bool) -> KVPool:
    """A pool whose blocks were written and are given back; block 1 is kept for the prefix cache."""
    shape = KVGeometry(2, 2, 4, dtype.itemsize, scale_bytes=4 if dtype == torch.int8 else 0)
    pool = KVPool(shape, 3, 4, dtype, torch.device("cpu"), poison_freed=poison_freed)
    pool.apply(StepPlan(0, ops=(BlockOp(OpKind.ALLOCATE, 0, (0, 1)),)))
    for tensor in pool.tensors:
        tensor.fill_(1)
    cached = (0, 1) if kind is OpKind.EVICT else (1,)
    pool.apply(StepPlan(1, ops=(BlockOp(OpKind.FREE, 0, (0, 1), cached=cached),)))
    if kind is OpKind.EVICT:
        pool.apply(StepPlan(2, ops=(BlockOp(OpKind.EVICT, None, (0,)),)))
    return pool


@pytest.mark.parametrize("kind", [OpKind.FREE, OpKind.EVICT])
def test_a_block_that_is_given_back_is_overwritten_only_if_asked(kind: OpKind) -> None:
    gone = freed(torch.float32, kind, poison_freed=True)
    assert gone.kv[:, :, 0].isnan().all()
    assert not gone.kv[:, :, 1].isnan().any()
    kept = freed(torch.float32, kind, poison_freed=False)
    assert not kept.kv[:, :, :2].isnan().any()


def test_in_eight_bits_a_freed_block_always_loses_its_scale() -> None:
    pool = freed(torch.int8, OpKind.FREE, poison_freed=False)
    assert pool.scales is not None
    assert pool.scales[:, :, 0].isnan().all()
