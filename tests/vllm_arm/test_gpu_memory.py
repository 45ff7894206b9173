"""What the vLLM arm reports of a GPU, with stand-ins for vLLM and for torch's allocator."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

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


def stand_in_for_vllm(monkeypatch: pytest.MonkeyPatch, allocator: Allocator) -> None:
    """vLLM's modules, as much of them as the arm uses until its cache is there."""
    made: dict[str, ModuleType] = {}

    def module(name: str, **content: Any) -> None:
        made[name] = ModuleType(name)
        vars(made[name]).update(content)
        monkeypatch.setitem(sys.modules, name, made[name])

    class Executor:
        worker: Any

        def __init__(self) -> None:
            cache = SimpleNamespace(num_gpu_blocks=8, block_size=BLOCK)
            self.vllm_config = SimpleNamespace(cache_config=cache)
            self._init_executor()

        def _init_executor(self) -> None:
            inside = sys.modules["experiment.vllm_worker.inside"]
            self.worker = inside.RankReport()
            self.worker.model_runner = SimpleNamespace()  # of the second version: no kv_caches yet
            allocator.take(230 * MIB)

        def determine_available_memory(self) -> list[int]:
            allocator.take(64 * MIB)
            allocator.free(64 * MIB)  # what a profile run leaves in the allocator's hands
            return [KV]

        def initialize_from_config(self, configs: Any) -> None:
            self.worker.model_runner.kv_caches = [torch.empty(KV, dtype=torch.uint8)]
            allocator.take(KV)

        def compile_or_warm_up_model(self) -> None:
            pass

        def collective_rpc(self, name: str) -> list[Any]:
            return [getattr(self.worker, name)()]

    class Engine:
        @staticmethod
        def from_engine_args(arguments: Any, stat_loggers: Any) -> None:
            executor = arguments.distributed_executor_backend()
            executor.determine_available_memory()
            executor.initialize_from_config([SimpleNamespace(kv_cache_groups=[0])])
            executor.compile_or_warm_up_model()

    module("vllm", SamplingParams=object, __version__="0.32.0")
    module("vllm.engine.arg_utils", EngineArgs=SimpleNamespace)
    module("vllm.sampling_params", RequestOutputKind=object)
    module("vllm.v1.engine.llm_engine", LLMEngine=Engine)
    module("vllm.v1.executor.multiproc_executor", MultiprocExecutor=Executor)
    module("vllm.v1.metrics.loggers", StatLoggerBase=object)
    for name in ("inside", "arm"):
        monkeypatch.delitem(sys.modules, f"experiment.vllm_worker.{name}", raising=False)


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


def test_the_cache_is_new_memory_and_every_channel_of_the_gpu_sees_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    allocator = Allocator()
    stand_in_for_vllm(monkeypatch, allocator)
    prepared = invented(tmp_path)
    model = prepared.model.model_copy(update={"element_bytes": KV // (8 * BLOCK * 2 * 2 * 2 * 32)})
    task = VllmTask(
        arm="vllm", directory="", device="cuda", model=model, workload=prepared.workload,
        block_size=BLOCK, ignore_eos=True, arguments={},
    )  # fmt: skip
    log = Log(lambda: CONTEXT + allocator.allocated + allocator.kept)
    arm = importlib.import_module("experiment.vllm_worker.arm")
    counters = SimpleNamespace(cuda=allocator.counters(), get_num_threads=lambda: 1)
    monkeypatch.setattr(sys.modules["experiment.vllm_worker.inside"], "torch", counters)
    arm._Start(Reporter(log, task, lambda tokens: "")).engine()  # type: ignore[arg-type]
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
