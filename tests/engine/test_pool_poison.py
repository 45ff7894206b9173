"""What a freed block holds: NaN where slots are counted, what it held where nobody looks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from experiment.arms import paged
from experiment.config.schema import Config
from experiment.engine.kv_pool import KVPool
from kvsim.core.step import BlockOp, OpKind, StepPlan
from kvsim.sizing.geometry import KVGeometry

SHAPE = KVGeometry(layers=2, kv_heads=2, head_dim=4, element_bytes=4)


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


class _SeenError(Exception):
    pass


@pytest.mark.parametrize("witness", [True, False])
def test_an_arm_overwrites_what_it_frees_where_slots_are_counted(witness: bool) -> None:
    config = Config.model_validate({"run": {"witness": witness}})
    found: list[KVPool] = []

    def reserved(shape: Any, tensors: Any, poisoned: Any, name: Any) -> None:
        found.append(poisoned.__self__)
        raise _SeenError

    workload = SimpleNamespace(budget_bytes=64 * SHAPE.bytes_per_token, max_length=64)
    task = SimpleNamespace(
        config=config, cache_geometry=SHAPE, workload=workload, dtype=torch.float32
    )
    run: Any = SimpleNamespace(task=task, device=torch.device("cpu"), pool_reserved=reserved)
    with pytest.raises(_SeenError):
        paged._generate(run, torch.nn.Linear(1, 1), 4)
    (pool,) = found
    pool.kv.fill_(1)
    pool.apply(StepPlan(0, ops=(BlockOp(OpKind.ALLOCATE, 0, (0,)),)))
    pool.apply(StepPlan(1, ops=(BlockOp(OpKind.FREE, 0, (0,)),)))
    assert bool(pool.kv[:, :, 0].isnan().all()) is witness
