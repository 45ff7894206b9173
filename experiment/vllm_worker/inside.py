"""Classes that run inside vLLM, at its extension points.

executor       phases of startup, and a stage between them
stat logger    vLLM's own statistics after each step
worker         each rank's memory, read in its own process
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from vllm.v1.executor.multiproc_executor import MultiprocExecutor
from vllm.v1.metrics.loggers import StatLoggerBase

from experiment.memory.tensors import storage_bytes

PhaseCallback = Callable[[Any, str, float], None]


def _ignore_phase(executor: Any, phase: str, seconds: float) -> None:
    """Do nothing: worker processes import this module too."""


class MeasuredExecutor(MultiprocExecutor):  # type: ignore[misc]
    """vLLM's multiprocess executor, which reports the end of each phase.

    Phases, in order: ``load`` (processes and weights), ``compile`` (profiling and compilation),
    ``cache`` (KV tensors), ``capture`` (CUDA graphs, if any).
    """

    # vLLM creates the object, so the callback is an attribute of the class.
    on_phase: ClassVar[PhaseCallback] = staticmethod(_ignore_phase)

    def _init_executor(self) -> None:
        self._timed("load", super()._init_executor)

    def determine_available_memory(self) -> Any:
        """Bytes available to each rank's cache."""
        return self._timed("compile", super().determine_available_memory)

    def initialize_from_config(self, kv_cache_configs: Any) -> None:
        """Reserve the cache."""
        self.groups = len(kv_cache_configs[0].kv_cache_groups)
        reserve = super().initialize_from_config
        self._timed("cache", lambda: reserve(kv_cache_configs))

    def compile_or_warm_up_model(self) -> Any:
        """Capture graphs."""
        return self._timed("capture", super().compile_or_warm_up_model)

    def _timed(self, phase: str, call: Callable[[], Any]) -> Any:
        begin = time.monotonic()
        result = call()
        type(self).on_phase(self, phase, time.monotonic() - begin)
        return result


class LastStats(StatLoggerBase):  # type: ignore[misc]
    """Keeps the statistics of the last step, and sums preemptions over steps."""

    scheduler: Any = None
    preempted = 0

    def __init__(self, vllm_config: Any = None, engine_index: int = 0) -> None:
        pass

    def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
        """Record the statistics of a step."""
        if scheduler_stats is not None:
            self.scheduler = scheduler_stats
        if iteration_stats is not None:
            self.preempted += iteration_stats.num_preempted_reqs

    def log_engine_initialized(self) -> None:
        """Nothing to log."""


class RankReport:
    """Mixed into vLLM's worker class; its methods are called by name in the rank's process."""

    model_runner: Any

    def pagedkv_report(self) -> dict[str, Any]:
        """Bytes of the rank's KV tensors, its threads, and torch's counters (None on the CPU)."""
        counters: Any = torch.cuda
        cuda = counters.is_available() and counters.is_initialized()
        return {
            "pid": os.getpid(),
            # One of vLLM's two runners lacks the attribute until it has a cache.
            "kv_bytes": storage_bytes(
                tensor
                for cache in getattr(self.model_runner, "kv_caches", ())
                for tensor in (cache if isinstance(cache, list | tuple) else (cache,))
            ),
            "threads": torch.get_num_threads(),
            "device_name": counters.get_device_name() if cuda else "cpu",
            "torch_allocated": counters.memory_allocated() if cuda else None,
            "torch_reserved": counters.memory_reserved() if cuda else None,
        }

    def pagedkv_trim(self) -> None:
        """Release memory that torch's allocator kept from profiling, so that the cache is new."""
        allocator: Any = torch.cuda
        if allocator.is_initialized():
            gc.collect()
            allocator.empty_cache()
