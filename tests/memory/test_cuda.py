"""Every channel of a real GPU against a KV pool whose size is known.

The pool is 512 MiB by the closed formula; each channel may be off by 2 %.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from experiment.engine.kv_pool import KVPool
from experiment.environment import NvmlFacts
from experiment.memory.gpu_probe import device_reason, probe_gpus, torch_facts
from experiment.memory.nvml import NvmlDevice, NvmlError, open_nvml
from experiment.memory.tensors import storage_bytes, trim
from kvsim.geometry import KVGeometry

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]
MIB = 2**20
POOL_BYTES = 512 * MIB
TOLERANCE = 0.02
BLOCK_SIZE = 16
# 2 × 16 layers × 8 heads × 64 numbers × 2 bytes = 32 KiB for each token
GEOMETRY = KVGeometry(16, 8, 64, 2)


def make_pool(size: int) -> KVPool:
    blocks = GEOMETRY.blocks_in(size, BLOCK_SIZE)
    return KVPool(GEOMETRY, blocks, BLOCK_SIZE, torch.float16, torch.device("cuda:0"))


@pytest.fixture(scope="module")
def facts() -> NvmlFacts:
    return probe_gpus(torch)[1]


@pytest.fixture
def device(facts: NvmlFacts) -> Iterator[NvmlDevice]:
    if facts.reason is not None:
        pytest.skip(f"NVML does not work here: {facts.reason.key}")
    nvml = open_nvml()
    uuid = str(torch.cuda.get_device_properties(0).uuid)
    try:
        yield nvml.device(uuid)
    except NvmlError as error:
        pytest.skip(f"NVML does not show the device: {error.reason.key}")
    finally:
        nvml.close()


@pytest.fixture(autouse=True)
def warm() -> None:
    """Context and kernel are there before anything is compared."""
    pool = make_pool(4 * MIB)
    assert pool.written_slots() == 0
    del pool
    trim()


def allocated() -> int:
    return int(torch.cuda.memory_allocated(0))


def device_used() -> int:
    free, total = torch.cuda.mem_get_info(0)
    return int(total - free)


def near() -> object:
    return pytest.approx(POOL_BYTES, rel=TOLERANCE)


def test_formula_tensor_and_allocator_agree() -> None:
    before = allocated()
    pool = make_pool(POOL_BYTES)
    formula = GEOMETRY.bytes_per_token * pool.num_blocks * BLOCK_SIZE
    assert formula == storage_bytes([pool.kv]) == POOL_BYTES
    assert allocated() - before == near()
    del pool
    trim()
    assert allocated() == before


def test_the_device_by_cuda_agrees() -> None:
    before = device_used()
    pool = make_pool(POOL_BYTES)
    torch.cuda.synchronize()
    assert device_used() - before == near()
    del pool
    trim()
    assert device_used() - before == pytest.approx(0, abs=TOLERANCE * POOL_BYTES)


def test_nvml_agrees_on_the_device(device: NvmlDevice, facts: NvmlFacts) -> None:
    total = torch.cuda.get_device_properties(0).total_memory
    reason = facts.device_reason or device_reason(device.memory(), total)
    if reason is not None:
        pytest.skip(f"NVML has no figure of the device: {reason.key}")
    before = device.memory().bytes
    pool = make_pool(POOL_BYTES)
    torch.cuda.synchronize()
    after = device.memory().bytes
    assert before is not None
    assert after is not None
    assert after - before == near()
    del pool


def test_nvml_agrees_on_the_process(device: NvmlDevice, facts: NvmlFacts) -> None:
    if facts.process_reason is not None:
        pytest.skip(f"NVML has no figure of the process: {facts.process_reason.key}")
    before = device.process_bytes([os.getpid()]).bytes
    pool = make_pool(POOL_BYTES)
    torch.cuda.synchronize()
    after = device.process_bytes([os.getpid()]).bytes
    assert before is not None
    assert after is not None
    assert after - before == near()
    del pool


def test_utilisation_is_a_share_or_a_reason(device: NvmlDevice) -> None:
    try:
        busy, memory = device.utilisation()
    except NvmlError as error:
        if error.reason.key != "memory.nvml_not_supported":
            raise
    else:
        assert 0 <= busy <= 1
        assert 0 <= memory <= 1


def test_this_process_is_no_stranger(device: NvmlDevice, facts: NvmlFacts) -> None:
    if facts.process_reason is not None:
        pytest.skip(f"NVML does not list this process: {facts.process_reason.key}")
    assert os.getpid() not in device.foreign_pids([os.getpid()])
    assert os.getpid() in device.foreign_pids([])


def test_torch_is_what_the_probe_says() -> None:
    assert torch_facts(torch).cuda_available
