"""Typed access to NVML; failures have a reason and never read as 0.

``pynvml`` is imported on first use: importing it is safe without a driver, initialising it is not.
Functions take the module as an argument, so that tests can replace it.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

from experiment.memory.figure import MemoryFigure, UnreadableError, unreadable
from experiment.text.messages import message

# Return codes of NVML (nvmlReturn_t); they never change.
INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 2, 3, 4, 6
INSUFFICIENT_SIZE, FUNCTION_NOT_FOUND, VERSION_MISMATCH = 7, 13, 25

_REASONS = {
    NOT_SUPPORTED: "memory.nvml_not_supported",
    NO_PERMISSION: "memory.nvml_no_permission",
    NOT_FOUND: "memory.nvml_gpu_not_found",
    INSUFFICIENT_SIZE: "memory.nvml_list_changing",
    9: "memory.nvml_no_driver",
    12: "memory.nvml_no_library",
    FUNCTION_NOT_FOUND: "memory.nvml_driver_old",
    15: "memory.nvml_gpu_lost",
    16: "memory.nvml_gpu_reset",
    18: "memory.nvml_driver_mismatch",
    VERSION_MISMATCH: "memory.nvml_driver_old",
}
_LISTS = (
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
)


def open_nvml(library: Any | None = None) -> Nvml:
    """Initialise NVML in this process; the caller must close the result.

    Raises:
        UnreadableError: no binding, no driver library, no driver, or no permission.
    """
    try:
        module = importlib.import_module("pynvml") if library is None else library
    except ImportError as error:
        raise unreadable("memory.nvml_not_installed") from error
    call(module, "nvmlInit")
    return Nvml(module)


def call(library: Any, name: str, *args: Any) -> Any:
    """Call a function of NVML.

    Raises:
        UnreadableError: NVML returned an error, or the binding lacks the function.
    """
    function = getattr(library, name, None)
    if function is None:
        raise UnreadableError(message("memory.nvml_driver_old"), FUNCTION_NOT_FOUND)
    # The binding's wrappers of process lists raise another class for "function not found".
    mismatch = getattr(library, "NVMLLibraryMismatchError", library.NVMLError)
    try:
        return function(*args)
    except (library.NVMLError, mismatch) as error:
        code = int(getattr(error, "value", FUNCTION_NOT_FOUND))
        key = _REASONS.get(code)
        reason = message(key) if key else message("memory.nvml_error", code=code)
        raise UnreadableError(reason, code) from error


class Nvml:
    """Initialised NVML."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def close(self) -> None:
        """Shut NVML down; errors are ignored."""
        with suppress(UnreadableError):
            call(self._library, "nvmlShutdown")

    def driver_version(self) -> str:
        """Version of the driver, such as 570.124.06.

        Raises:
            UnreadableError: unknown.
        """
        return _string(call(self._library, "nvmlSystemGetDriverVersion"))

    def device(self, uuid: str) -> NvmlDevice:
        """Find a device by UUID, with prefix (GPU-…, MIG-…) or, as in torch, without.

        Indices are not used, because NVML and CUDA number devices differently.

        Raises:
            UnreadableError: no such device, or no permission.
        """
        for name in _candidates(uuid):
            try:
                handle = call(self._library, "nvmlDeviceGetHandleByUUID", name)
                return NvmlDevice(self._library, handle, name)
            except UnreadableError as error:
                if error.code not in (NOT_FOUND, INVALID_ARGUMENT):
                    raise
        raise unreadable("memory.nvml_gpu_not_found")

    def devices(self) -> list[NvmlDevice]:
        """All whole GPUs that the driver lists, without those that do not answer.

        Raises:
            UnreadableError: NVML does not list them.
        """
        found = []
        for index in range(int(call(self._library, "nvmlDeviceGetCount"))):
            with suppress(UnreadableError):
                handle = call(self._library, "nvmlDeviceGetHandleByIndex", index)
                uuid = _string(call(self._library, "nvmlDeviceGetUUID", handle))
                found.append(NvmlDevice(self._library, handle, uuid))
        return found


class NvmlDevice:
    """A GPU or a MIG slice."""

    def __init__(self, library: Any, handle: Any, uuid: str) -> None:
        self._library = library
        self._handle = handle
        self.uuid = uuid

    @property
    def is_slice(self) -> bool:
        """Whether this is a MIG slice."""
        return self.uuid.startswith("MIG-")

    def name(self) -> str:
        """Product name.

        Raises:
            UnreadableError: unknown.
        """
        return _string(call(self._library, "nvmlDeviceGetName", self._handle))

    def compute_capability(self) -> str:
        """Compute capability, such as 9.0.

        Raises:
            UnreadableError: unknown.
        """
        pair = call(self._library, "nvmlDeviceGetCudaComputeCapability", self._handle)
        return f"{pair[0]}.{pair[1]}"

    def mig_enabled(self) -> bool | None:
        """Whether the GPU is, or is partitioned into, MIG slices; None if unknown."""
        if self.is_slice:
            return True
        try:
            current, _pending = call(self._library, "nvmlDeviceGetMigMode", self._handle)
        except UnreadableError as error:
            # GPUs without MIG do not support the query.
            return False if error.code == NOT_SUPPORTED else None
        return bool(current)

    def memory(self) -> MemoryFigure:
        """Used bytes of the whole device, other processes included, and its capacity.

        Version 2 of the call excludes memory reserved by the driver; version 1, on older drivers,
        includes it. It cancels in a difference of two readings.

        Raises:
            UnreadableError: NVML returned an error.
        """
        info = self._memory_info()
        return MemoryFigure(int(info.used), total_bytes=int(info.total))

    def _memory_info(self) -> Any:
        version = getattr(self._library, "nvmlMemory_v2", None)
        if version is not None:
            try:
                return call(self._library, "nvmlDeviceGetMemoryInfo", self._handle, version)
            except UnreadableError as error:
                if error.code not in (FUNCTION_NOT_FOUND, VERSION_MISMATCH, INVALID_ARGUMENT):
                    raise
        return call(self._library, "nvmlDeviceGetMemoryInfo", self._handle)

    def utilisation(self) -> tuple[float, float]:
        """Shares of the driver's sampling period with a running kernel, and with memory traffic.

        Raises:
            UnreadableError: not supported, as on a GPU partitioned into MIG slices.
        """
        rates = call(self._library, "nvmlDeviceGetUtilizationRates", self._handle)
        return int(rates.gpu) / 100, int(rates.memory) / 100

    def processes(self) -> Mapping[int, int | None]:
        """Used bytes of each process on the device; None if the driver does not report them.

        Raises:
            UnreadableError: the driver does not list processes.
        """
        # A process may be in several lists with the same figure, which counts once. On a
        # partitioned GPU it is listed for each slice with different figures, which are added.
        usage: dict[tuple[int, Any, Any], int | None] = {}
        for name in _LISTS:
            for entry in self._list(name, needed=name == _LISTS[0]):
                key = (
                    int(entry.pid),
                    getattr(entry, "gpuInstanceId", None),
                    getattr(entry, "computeInstanceId", None),
                )
                # A listed process holds at least a context, so 0 means unknown.
                usage[key] = usage.get(key) or entry.usedGpuMemory or None
        by_pid: dict[int, int | None] = {}
        for (pid, _, _), used in usage.items():
            before = by_pid.get(pid, 0)
            by_pid[pid] = None if used is None or before is None else before + int(used)
        return by_pid

    def process_bytes(self, pids: Collection[int]) -> MemoryFigure:
        """Sum of the used bytes of the processes ``pids``.

        Raises:
            UnreadableError: there are none, or the driver lists none of them, or one without a
                figure.
        """
        if not pids:
            raise unreadable("memory.process_gone")
        usage = self.processes()
        ours = [usage[pid] for pid in pids if pid in usage]
        if not ours:
            raise unreadable("memory.nvml_not_listed")
        known = [used for used in ours if used is not None]
        if len(known) < len(ours):
            raise unreadable("memory.nvml_no_value")
        return MemoryFigure(sum(known))

    def foreign_pids(self, pids: Collection[int]) -> frozenset[int]:
        """Processes on the device that are not in ``pids``.

        Raises:
            UnreadableError: the driver does not list processes.
        """
        return frozenset(self.processes()) - frozenset(pids)

    def _list(self, name: str, *, needed: bool) -> list[Any]:
        suffix, retried = "", False
        while True:
            try:
                return list(call(self._library, name + suffix, self._handle))
            except UnreadableError as error:
                if error.code == INSUFFICIENT_SIZE and not retried:
                    retried = True  # a process started between NVML's calls for count and list
                elif error.code == FUNCTION_NOT_FOUND and not suffix:
                    suffix = "_v2"
                elif needed or error.code not in (NOT_SUPPORTED, FUNCTION_NOT_FOUND):
                    raise
                else:
                    return []


def _candidates(uuid: str) -> tuple[str, ...]:
    return (uuid,) if uuid.startswith(("GPU-", "MIG-")) else (f"GPU-{uuid}", f"MIG-{uuid}")


def _string(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
