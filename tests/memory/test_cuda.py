"""Every channel of a real GPU against a KV pool whose size is known.

The pool is 512 MiB by the closed formula; each channel may be off by 2 %.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from experiment.analysis.conclusions import evaluate
from experiment.engine.cuda.triton_support import reason_against
from experiment.engine.kv_pool import KVPool
from experiment.events import DecodeGraphsReady, DecodeGraphsUsed, KernelChosen
from experiment.machine.environment import NvmlFacts
from experiment.memory.gpu_probe import device_reason, probe_gpus, torch_facts
from experiment.memory.nvml import NvmlDevice, NvmlError, open_nvml
from experiment.memory.tensors import storage_bytes, trim
from experiment.record.log import read_record
from kvsim.sizing.geometry import KVGeometry

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]
ROOT = Path(__file__).parent.parent.parent
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


# GPT-2's shape in half precision: 1,024 blocks of 16 slots of 36 KiB are 576 MiB.
WHOLE_RUN = """
[model]
name = "gpt2"
[cache]
budget = "576 MiB"
max_length = 512
[workload]
max_new_tokens = 20
[run]
device = "cuda"
arms = ["contiguous.batch", "paged"]
"""


def test_a_whole_run_on_the_gpu_is_reconciled_by_channels_that_are_independent(
    tmp_path: Path,
) -> None:
    """The product's own path: arms in processes, monitor, ladder, reconciliation."""
    config = tmp_path / "gpu.toml"
    config.write_text(WHOLE_RUN, encoding="utf-8")
    words = ["--config", str(config), "--yes", "--lang", "en", "--out", str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, str(ROOT / "run_experiment.py"), *words],
        capture_output=True, text=True, encoding="utf-8", timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    record = read_record(tmp_path / "run")
    results = evaluate(record)
    if reason_against(torch.device("cuda")) is None:
        assert {event.kernel for event in record.of(KernelChosen)} == {"triton"}
        [graphs] = record.of(DecodeGraphsReady)
        assert graphs.sizes == [1, 2, 4], graphs.reason
        assert [event.steps > 0 for event in record.of(DecodeGraphsUsed)] == [True]
    usable = {c["channel"] for c in (results.environment or {})["channels"] if c["usable"]}
    for arm in results.arms:
        found = arm.reconciliation
        assert arm.status == "finished"
        assert found is not None
        assert found.agree is True, found.text
        judged = {row.channel: row.difference for row in found.rows if row.agrees is not None}
        expected = {"tensors", "torch.allocated", "torch.reserved"} | ({"nvml.process"} & usable)
        if arm.watch.foreign_before == arm.watch.foreign_after == 0:
            expected |= {"cuda.mem_get_info"} | ({"nvml.device"} & usable)
        assert expected <= judged.keys()
        if arm.arm == "paged":  # one tensor; the other cache is many, in pieces of 20 MiB
            assert all(abs(off or 0) <= TOLERANCE for off in judged.values()), judged
        parts = {part.part: part.bytes for part in found.parts}
        assert all(parts[name] is not None for name in ("weights", "kv", "work", "slack"))
        assert ("nvml.process" in usable) == (parts["runtime"] is not None)
        assert arm.watch.gpu_share is not None or arm.watch.gpu_reason is not None
