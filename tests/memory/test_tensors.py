"""Tensor bytes, and the figures of torch's allocator that the CPU does not have."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from experiment.events import Channel, Stage
from experiment.memory.tensors import storage_bytes, torch_readings

MIB = 2**20


def test_views_count_their_storage_once_and_whole() -> None:
    whole = torch.zeros(1024, dtype=torch.float32)
    other = torch.zeros(10, dtype=torch.float16)
    assert storage_bytes([whole, whole[:4], whole.view(32, 32), other]) == 4096 + 20
    assert storage_bytes([whole[:4]]) == 4096


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_allocator_figures_are_unknown_without_cuda(device: str) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    readings = {r.channel: r for r in torch_readings("paged", Stage.LAST_STEP, 2, device)}
    key = "memory.torch_cpu" if device == "cpu" else "memory.cuda_missing"
    for channel in (Channel.TORCH_ALLOCATED, Channel.TORCH_RESERVED):
        reading = readings[channel]
        assert reading.bytes is None
        assert reading.reason is not None
        assert reading.reason.key == key
        assert (reading.stage, reading.request) == (Stage.LAST_STEP, 2)
    assert (Channel.CUDA_MEM_GET_INFO in readings) == (device == "cuda")


# Blocks below 128 KiB stay with the C library when freed; one every so often pins the heap.
TRIM = """
import psutil, torch
from experiment.memory.tensors import trim
rss = psutil.Process().memory_info
trim()
before = rss().rss
held = [torch.zeros(96 * 1024, dtype=torch.uint8) for _ in range(1400)]
pins = held[::50]
print(rss().rss - before)
del held
trim()
print(rss().rss - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="trims the heap of glibc")
def test_trim_gives_small_blocks_back() -> None:
    """In a process of its own: in this one other tests have left holes in the heap."""
    done = subprocess.run(
        [sys.executable, "-c", TRIM], capture_output=True, encoding="utf-8", check=True
    )
    held, left = map(int, done.stdout.split())
    assert held > 60 * MIB
    assert left < 20 * MIB
