"""Swapping on a stream of its own, with streams that put copies off as long as they may."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from checked_run import CheckedRun
from tiny_engine import geometry, solo
from torch.utils._python_dispatch import TorchDispatchMode

from experiment.config.kv_dtype import cache_geometry
from experiment.engine.engine import Engine
from experiment.engine.kv_pool import KVPool
from experiment.engine.model_runner import ModelRunner
from experiment.engine.quantized import KV_DTYPES
from experiment.engine.swap import CudaStreams, StreamTransfers, Transfers
from experiment.gpucheck.tiny_models import POSITIONS, VOCABULARY, tiny
from kvsim.core.scheduler import SchedulerConfig
from kvsim.core.step import BlockOp, OpKind, StepPlan
from kvsim.sizing.geometry import KVGeometry

CPU = torch.device("cpu")


class _Later(TorchDispatchMode):
    """Puts copies into a queue instead of doing them."""

    def __init__(self, queue: list[Callable[[], Any]]) -> None:
        super().__init__()
        self.queue = queue

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default:
            self.queue.append(lambda: func(*args, **(kwargs or {})))
            return args[0]
        return func(*args, **(kwargs or {}))


class LazyStreams(CudaStreams):
    """A copying stream that does nothing until somebody waits for it."""

    def __init__(self) -> None:
        self.queue: list[Callable[[], Any]] = []
        self.log: list[str] = []

    @contextmanager
    def copying(self) -> Iterator[None]:
        self.log.append("copy")
        with _Later(self.queue):
            yield

    def copy_after_compute(self) -> None:
        self.log.append("after compute")

    def compute_after_copy(self) -> None:
        self.settle()

    def keep(self, tensor: torch.Tensor) -> None:
        self.log.append("keep")

    def settle(self) -> None:
        self.log.append("settle")
        for copy in self.queue:
            copy()
        self.queue.clear()

    def host(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8)


def lazy() -> tuple[LazyStreams, StreamTransfers]:
    streams = LazyStreams()
    return streams, StreamTransfers(streams)


def make_pool(transfers: Transfers | None, dtype: str = "auto") -> KVPool:
    shape = cache_geometry(KVGeometry(2, 2, 8, 4), dtype)
    kind = KV_DTYPES.get(dtype, torch.float32)
    return KVPool(shape, 4, 4, kind, CPU, 3, transfers)


def swap(kind: OpKind, blocks: tuple[int, ...], places: tuple[int, ...]) -> StepPlan:
    return StepPlan(0, ops=(BlockOp(kind, 0, blocks, sources=places),))


@pytest.mark.parametrize("dtype", ["auto", "int8", "fp8"])
def test_a_block_comes_back_as_it_went_though_its_place_was_given_away(dtype: str) -> None:
    streams, transfers = lazy()
    pool = make_pool(transfers, dtype)
    for tensor in pool.tensors:
        raw = tensor.view(torch.uint8)
        raw.copy_(torch.arange(raw.numel()).remainder(97).view(raw.shape))
    before = [tensor.view(torch.uint8).clone() for tensor in pool.tensors]
    pool.apply(StepPlan(0, ops=(BlockOp(OpKind.ALLOCATE, 0, (3, 1)),)))
    pool.apply(swap(OpKind.SWAP_OUT, (3, 1), (0, 2)))  # poisons both while the copy waits
    assert streams.queue
    pool.apply(swap(OpKind.SWAP_IN, (0, 3), (0, 2)))
    for tensor, old in zip(pool.tensors, before, strict=True):
        now = tensor.view(torch.uint8)
        assert torch.equal(now[:, :, 0], old[:, :, 3])
        assert torch.equal(now[:, :, 3], old[:, :, 1])


def test_streams_wait_for_each_other_where_they_must() -> None:
    streams, transfers = lazy()
    pool = make_pool(transfers)
    pool.apply(StepPlan(0, ops=(BlockOp(OpKind.ALLOCATE, 0, (1,)),)))
    pool.apply(swap(OpKind.SWAP_OUT, (1,), (2,)))
    assert streams.log == ["after compute", "copy", "keep"]
    pool.apply(swap(OpKind.SWAP_IN, (0,), (2,)))
    assert streams.log[3:] == ["copy", "settle", "keep"]


def is_mapped(address: int) -> bool:
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    ranges = (line.split()[0].split("-") for line in lines)
    return any(int(begin, 16) <= address < int(end, 16) for begin, end in ranges)


@pytest.mark.parametrize("code", [0, 2])
def test_host_memory_is_pinned_to_the_byte_as_long_as_it_is_there(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that pins no memory (code 2) leaves the pool as right as it is."""
    calls: list[tuple[Any, ...]] = []

    def pin(*arguments: int) -> int:
        calls.append(("pin", *arguments))
        return code

    def unpin(address: int) -> None:
        calls.append(("unpin", address, is_mapped(address)))

    driver = SimpleNamespace(cudaHostRegister=pin, cudaHostUnregister=unpin)
    side = SimpleNamespace(synchronize=lambda: calls.append(("wait",)))
    monkeypatch.setattr(torch.cuda, "cudart", lambda: driver)
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: side)
    pool = make_pool(StreamTransfers(CudaStreams(CPU)))
    host = pool.host
    assert host is not None
    assert host.isnan().all()
    address, block = host.data_ptr(), host[:, :, 1]
    assert calls == [("pin", address, host.nbytes, 0), ("wait",)]
    del pool, host
    assert calls[2:] == []  # a part of it is there yet
    del block
    assert calls[2:] == ([] if code else [("wait",), ("unpin", address, True)])


@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_a_run_that_swaps_gives_the_tokens_of_one_that_need_not(kv_dtype: str) -> None:
    config = SchedulerConfig(preemption="swap", host_blocks=20)
    _, transfers = lazy()
    shape = cache_geometry(geometry("llama"), kv_dtype)
    dtype = KV_DTYPES.get(kv_dtype, torch.float32)
    prompts = [list(range(3, 3 + length)) for length in (9, 11, 9, 2)]

    def run(blocks: int, transfers: Transfers | None) -> tuple[CheckedRun, list[list[int]]]:
        pool = KVPool(shape, blocks, 4, dtype, CPU, config.host_blocks, transfers)
        runner = ModelRunner(tiny("llama"), pool)
        checked = CheckedRun(Engine(runner, config, (), VOCABULARY, POSITIONS))
        for request, prompt in enumerate(prompts):
            checked.engine.add(request, prompt, 12)
        checked.to_the_end()
        return checked, [checked.engine.generated(r) for r in range(len(prompts))]

    swapped, tokens = run(13, transfers)
    assert swapped.count(OpKind.SWAP_OUT) > 0
    assert tokens == run(60, None)[1]
    if kv_dtype == "auto":
        assert tokens == [solo("llama", prompt, 12) for prompt in prompts]
