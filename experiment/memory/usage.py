"""How busy the processes of an arm keep the processor, and anybody the GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import psutil

from experiment.environment import Environment
from experiment.events import Usage
from experiment.memory.devices import GpuReader
from experiment.memory.nvml import NvmlError
from experiment.memory.process_tree import ProcessTree
from experiment.messages import Message, message

EVERY_S = 0.25
_Shares = tuple[float | None, float | None, Message | None]


class UsageMeter:
    """Takes a :class:`Usage` every 250 ms from the thread of the memory sampler."""

    def __init__(
        self,
        arm: str,
        environment: Environment,
        tree: ProcessTree,
        gpu: GpuReader,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._arm = arm
        self._on_gpu = environment.device == "cuda"
        self._tree = tree
        self._gpu = gpu
        self._clock = clock
        self._due = float("-inf")
        self._taken = 0.0
        self._before: Mapping[Any, float] | None = None
        self._last: Usage | None = None

    def take(self) -> Usage | None:
        """Measure since the last call if 250 ms have passed. None: not yet, or nothing new.

        What is unknown for the same reason as before is no news.
        """
        now = self._clock()
        if now < self._due:
            return None
        self._due = now + EVERY_S
        cores, reason = self._cpu_cores(now)
        if cores is None and reason is None:
            return None  # the first look: there is nothing to compare with yet
        gpu, gpu_memory, gpu_reason = self._gpu_shares()
        usage = Usage(
            arm=self._arm,
            cpu_cores=cores,
            gpu_share=gpu,
            gpu_memory_share=gpu_memory,
            reason=reason,
            gpu_reason=gpu_reason,
        )
        last, self._last = self._last, usage
        if cores is None and gpu is None and last is not None and last.cpu_cores is None:
            same = (last.reason, last.gpu_reason) == (reason, gpu_reason)
            return None if same else usage
        return usage

    def _cpu_cores(self, now: float) -> tuple[float | None, Message | None]:
        """CPU time over wall time, by process: a sum would fall when a child ends."""
        try:
            times = self._tree.cpu_times()
        except psutil.NoSuchProcess:
            return None, message("memory.process_gone")
        except psutil.AccessDenied:
            return None, message("memory.process_denied")
        before, passed = self._before, now - self._taken
        self._before, self._taken = times, now
        if before is None or passed <= 0:
            return None, None
        # A process that is new here began within the interval, so all its time belongs to it.
        used = sum(spent - before.get(process, 0.0) for process, spent in times.items())
        return used / passed, None

    def _gpu_shares(self) -> _Shares:
        if not self._on_gpu:
            return None, None, message("memory.device_is_cpu")
        try:
            busy, memory = self._gpu.device().utilisation()
        except NvmlError as error:
            return None, None, error.reason
        return busy, memory, None
