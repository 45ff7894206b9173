"""Devices that the runner reads from outside: GPU and main memory."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import psutil

from experiment.machine.environment import Environment
from experiment.memory.figure import MemoryFigure, missing
from experiment.memory.nvml import Nvml, NvmlDevice, NvmlError, open_nvml
from experiment.text.messages import message


class GpuReader:
    """The GPU of the run, opened through NVML on first use.

    ``library`` replaces ``pynvml``.
    """

    def __init__(self, environment: Environment, library: Any | None = None) -> None:
        self._environment = environment
        self._library = library
        self._nvml: Nvml | None = None
        self._device: NvmlDevice | None = None
        self._failure: NvmlError | None = None

    def device(self) -> NvmlDevice:
        """Open the device once.

        Raises:
            NvmlError: it could not be opened; later calls fail with the same error.
        """
        if self._failure is not None:
            raise self._failure
        if self._device is None:
            try:
                self._device = self._open()
            except NvmlError as error:
                self._failure = error
                raise
        return self._device

    def process_bytes(self, pids: Collection[int]) -> MemoryFigure:
        """Bytes of the processes ``pids``.

        Raises:
            NvmlError: the device could not be opened.
        """
        return self.device().process_bytes(pids) if pids else missing("memory.process_gone")

    def close(self) -> None:
        """Shut NVML down."""
        if self._nvml is not None:
            self._nvml.close()
        self._nvml = self._device = None

    def _open(self) -> NvmlDevice:
        gpu = self._environment.gpu
        if gpu is None or gpu.uuid is None:
            raise NvmlError(message("memory.nvml_gpu_not_found"))
        self._nvml = open_nvml(self._library)
        return self._nvml.device(gpu.uuid)


def system_used() -> MemoryFigure:
    """Bytes of main memory that are not available to a new process."""
    memory = psutil.virtual_memory()
    # "used" excludes caches that cannot be dropped.
    return MemoryFigure(memory.total - memory.available, total_bytes=memory.total)
