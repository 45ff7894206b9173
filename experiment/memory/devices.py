"""Devices that the runner reads from outside: GPU and main memory."""

from __future__ import annotations

from collections.abc import Collection
from statistics import fmean
from typing import Any

import psutil

from experiment.machine.environment import Environment
from experiment.memory.figure import MemoryFigure, UnreadableError, unreadable
from experiment.memory.nvml import Nvml, NvmlDevice, open_nvml


class GpuReader:
    """The GPUs of the run, opened through NVML on first use.

    Args:
        gpus: how many of torch's GPUs the arm uses; their figures are added.
        library: replaces ``pynvml``.
    """

    def __init__(self, environment: Environment, library: Any | None = None, gpus: int = 1) -> None:
        # UUIDs of the GPUs, None if it is unknown.
        self.uuids = [gpu.uuid for gpu in environment.used_gpus(gpus)]
        self._library = library
        self._nvml: Nvml | None = None
        self._opened: list[NvmlDevice] | UnreadableError | None = None

    def memory(self) -> MemoryFigure:
        """Used bytes of the devices, other processes included, and their capacity.

        Raises:
            UnreadableError: as of :meth:`NvmlDevice.memory`, or a device could not be opened.
        """
        seen = [device.memory() for device in self._devices()]
        total = sum(each.total_bytes or 0 for each in seen)
        return MemoryFigure(sum(each.bytes or 0 for each in seen), total_bytes=total)

    def process_bytes(self, pids: Collection[int]) -> MemoryFigure:
        """Used bytes of the processes ``pids``.

        Raises:
            UnreadableError: as of :meth:`NvmlDevice.process_bytes`, on any of the devices.
        """
        return MemoryFigure(sum(d.process_bytes(pids).bytes or 0 for d in self._devices()))

    def foreign_pids(self, pids: Collection[int]) -> frozenset[int]:
        """Processes on the devices that are not in ``pids``.

        Raises:
            UnreadableError: a driver does not list processes.
        """
        return frozenset[int]().union(*(d.foreign_pids(pids) for d in self._devices()))

    def utilisation(self) -> tuple[float, float]:
        """Mean shares of the driver's period with a running kernel, and with memory traffic.

        Raises:
            UnreadableError: as of :meth:`NvmlDevice.utilisation`.
        """
        busy, memory = zip(*(device.utilisation() for device in self._devices()), strict=True)
        return fmean(busy), fmean(memory)

    def close(self) -> None:
        """Shut NVML down."""
        if self._nvml is not None:
            self._nvml.close()
        self._nvml = self._opened = None

    def _devices(self) -> list[NvmlDevice]:
        """Open the devices once; later calls fail with the same error."""
        if self._opened is None:
            try:
                self._opened = self._open()
            except UnreadableError as error:
                self._opened = error
        if isinstance(self._opened, UnreadableError):
            raise self._opened
        return self._opened

    def _open(self) -> list[NvmlDevice]:
        uuids = [uuid for uuid in self.uuids if uuid is not None]
        if not uuids or len(uuids) < len(self.uuids):
            raise unreadable("memory.nvml_gpu_not_found")
        self._nvml = open_nvml(self._library)
        return [self._nvml.device(uuid) for uuid in uuids]


def system_used() -> MemoryFigure:
    """Bytes of main memory that are not available to a new process."""
    memory = psutil.virtual_memory()
    # "used" excludes caches that cannot be dropped.
    return MemoryFigure(memory.total - memory.available, total_bytes=memory.total)
