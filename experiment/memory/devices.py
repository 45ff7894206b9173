"""Devices that the runner reads from outside: GPU and main memory."""

from __future__ import annotations

from typing import Any

import psutil

from experiment.machine.environment import Environment
from experiment.memory.figure import MemoryFigure, UnreadableError, unreadable
from experiment.memory.nvml import Nvml, NvmlDevice, open_nvml


class GpuReader:
    """The GPU of the run, opened through NVML on first use.

    ``library`` replaces ``pynvml``.
    """

    def __init__(self, environment: Environment, library: Any | None = None) -> None:
        self._environment = environment
        self._library = library
        self._nvml: Nvml | None = None
        self._opened: NvmlDevice | UnreadableError | None = None

    def device(self) -> NvmlDevice:
        """Open the device once.

        Raises:
            UnreadableError: it could not be opened; later calls fail with the same error.
        """
        if self._opened is None:
            try:
                self._opened = self._open()
            except UnreadableError as error:
                self._opened = error
        if isinstance(self._opened, UnreadableError):
            raise self._opened
        return self._opened

    def close(self) -> None:
        """Shut NVML down."""
        if self._nvml is not None:
            self._nvml.close()
        self._nvml = self._opened = None

    def _open(self) -> NvmlDevice:
        gpu = self._environment.gpu
        if gpu is None or gpu.uuid is None:
            raise unreadable("memory.nvml_gpu_not_found")
        self._nvml = open_nvml(self._library)
        return self._nvml.device(gpu.uuid)


def system_used() -> MemoryFigure:
    """Bytes of main memory that are not available to a new process."""
    memory = psutil.virtual_memory()
    # "used" excludes caches that cannot be dropped.
    return MemoryFigure(memory.total - memory.available, total_bytes=memory.total)
