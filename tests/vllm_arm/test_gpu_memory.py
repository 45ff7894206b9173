"""What the vLLM arm reports of a GPU, with stand-ins for vLLM and for torch's allocator."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from vllm_runs import BLOCK, invented

from experiment.analysis.reconcile import reconcile
from experiment.events import Channel, Event, Reading, Scope, Stage, StageEntered
from experiment.vllm_worker.reporter import Reporter
from experiment.vllm_worker.task import VllmTask

MIB = 2**20
KV = 40 * MIB
CONTEXT = 500 * MIB


class Allocator:
    """Counters as torch's: what was freed stays with it and is allocated again first."""

    def __init__(self) -> None:
        self.allocated = self.kept = 0

    def take(self, size: int) -> None:
        self.allocated += size
        self.kept = max(0, self.kept - size)

    def free(self, size: int) -> None:
        self.allocated -= size
        self.kept += size

    def counters(self) -> SimpleNamespace:
        def empty_cache() -> None:
            self.kept = 0

        return SimpleNamespace(
            is_available=lambda: True,
            is_initialized=lambda: True,
            get_device_name=lambda: "Fake GPU",
            memory_allocated=lambda: self.allocated,
            memory_reserved=lambda: self.allocated + self.kept,
            empty_cache=empty_cache,
        )


class Log:
    """The wire; at each stage it reads NVML too, as the runner does."""

    def __init__(self, nvml: Callable[[], int]) -> None:
        self.readings: list[Reading] = []
        self._nvml = nvml

    def emit(self, event: Event) -> None:
        if isinstance(event, Reading):
            self.readings.append(event)

    def mark(self, event: StageEntered) -> None:
        for channel in (Channel.NVML_PROCESS, Channel.RSS):
            size = self._nvml() if channel is Channel.NVML_PROCESS else 900 * MIB
            self.readings.append(
                Reading(
                    arm="vllm", channel=channel, scope=Scope.TREE, bytes=size, stage=event.stage
                )
            )


VLLM = (
    "vllm", "vllm.engine.arg_utils", "vllm.sampling_params", "vllm.v1.engine.llm_engine",
    "vllm.v1.executor.multiproc_executor", "vllm.v1.metrics.loggers",
)  # fmt: skip


def test_the_cache_is_new_memory_and_every_channel_of_the_gpu_sees_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in VLLM:  # whatever is imported from them
        module = ModuleType(name)
        vars(module)["__getattr__"] = lambda _: object
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("inside", "arm"):
        monkeypatch.delitem(sys.modules, f"experiment.vllm_worker.{name}", raising=False)
    arm = importlib.import_module("experiment.vllm_worker.arm")
    inside = importlib.import_module("experiment.vllm_worker.inside")
    allocator, prepared = Allocator(), invented(tmp_path)
    counters = SimpleNamespace(cuda=allocator.counters(), get_num_threads=lambda: 1)
    monkeypatch.setattr(inside, "torch", counters)
    model = prepared.model.model_copy(update={"element_bytes": KV // (8 * BLOCK * 2 * 2 * 2 * 32)})
    task = VllmTask(
        arm="vllm", directory="", device="cuda", model=model, workload=prepared.workload,
        block_size=BLOCK, ignore_eos=True, arguments={},
    )  # fmt: skip
    log = Log(lambda: CONTEXT + allocator.allocated + allocator.kept)
    start = arm._Start(Reporter(log, task, lambda tokens: ""))  # type: ignore[arg-type]
    worker = inside.RankReport()
    worker.model_runner = SimpleNamespace()  # of the second version: no kv_caches yet
    cache = SimpleNamespace(num_gpu_blocks=8, block_size=BLOCK)
    executor = SimpleNamespace(
        groups=1, vllm_config=SimpleNamespace(cache_config=cache),
        collective_rpc=lambda name: [getattr(worker, name)()],
    )  # fmt: skip
    allocator.take(230 * MIB)
    start._phase(executor, "load", 1.0)
    allocator.take(64 * MIB)
    allocator.free(64 * MIB)  # what a profile run leaves in the allocator's hands
    start._phase(executor, "compile", 1.0)
    worker.model_runner.kv_caches = [torch.empty(KV, dtype=torch.uint8)]
    allocator.take(KV)
    start._phase(executor, "cache", 1.0)
    found = reconcile(log.readings, [], model.slot_bytes)
    assert found is not None
    assert found.expected_bytes == KV
    assert {row.channel: row.bytes for row in found.rows} == dict.fromkeys(
        ("tensors", "torch.allocated", "torch.reserved", "nvml.process"), KV
    )
    assert found.agree is True
    parts = {part.part: (part.channel, part.bytes) for part in found.parts}
    assert parts["kv"] == ("torch.allocated", KV)
    assert parts["runtime"] == ("nvml.process", CONTEXT)
    assert Stage.LOADED in {reading.stage for reading in log.readings}


def test_a_sum_over_ranks_is_unknown_if_one_of_them_is(tmp_path: Path) -> None:
    prepared = invented(tmp_path)
    task = VllmTask(
        arm="vllm", directory="", device="cpu", model=prepared.model, workload=prepared.workload,
        block_size=BLOCK, ignore_eos=True, arguments={},
    )  # fmt: skip
    reporter = Reporter(Log(int), task, lambda tokens: "")  # type: ignore[arg-type]
    reporter.ranks = lambda: [
        {"torch_allocated": 5, "torch_reserved": None}, {"torch_allocated": 7, "torch_reserved": 9}
    ]  # fmt: skip
    read = {reading.channel: reading.bytes for reading in reporter.readings(Stage.LOADED, None)}
    assert read == {Channel.TORCH_ALLOCATED: 12, Channel.TORCH_RESERVED: None}
