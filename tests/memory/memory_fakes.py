"""Stand-ins for NVML and torch that play failures, and a real process with known patterns."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pattern_arm
import psutil
from made_up_machine import UUID

from experiment.memory.nvml import FUNCTION_NOT_FOUND

MIB = 2**20
WHOLE_GPU = 0xFFFFFFFF


def entry(pid: int, used: int | None, instance: int = WHOLE_GPU) -> SimpleNamespace:
    """A row of a process list, as the binding returns it."""
    return SimpleNamespace(
        pid=pid, usedGpuMemory=used, gpuInstanceId=instance, computeInstanceId=instance
    )


class FakeNvml:
    """Answers like pynvml. ``errors`` holds, by function, the codes it raises, one for each call.

    A plain number is raised by every call. As in the binding, a list of processes whose newest
    version the driver lacks raises another class.
    """

    nvmlMemory_v2 = 33554472  # noqa: N815

    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            super().__init__(f"code {value}")
            self.value = value

    class NVMLLibraryMismatchError(Exception):
        """No NVMLError, and without a code."""

    def __init__(self, errors: dict[str, int | list[int]] | None = None) -> None:
        self.errors = errors or {}
        self.uuids = {f"GPU-{UUID}"}
        self.used, self.total, self.reserved = 3 * 1024 * MIB, 80 * 1024 * MIB, 500 * MIB
        self.compute: list[Any] = []
        self.graphics: list[Any] = []
        self.mps: list[Any] = []
        self.calls: list[str] = []

    def _enter(self, name: str) -> None:
        self.calls.append(name)
        codes = self.errors.get(name)
        code = codes.pop(0) if isinstance(codes, list) and codes else codes
        if not isinstance(code, int):
            return
        if code == FUNCTION_NOT_FOUND and name.endswith("RunningProcesses"):
            raise self.NVMLLibraryMismatchError
        raise self.NVMLError(code)

    def nvmlInit(self) -> None:  # noqa: N802
        self._enter("nvmlInit")

    def nvmlShutdown(self) -> None:  # noqa: N802
        self._enter("nvmlShutdown")

    def nvmlSystemGetDriverVersion(self) -> bytes:  # noqa: N802
        self._enter("nvmlSystemGetDriverVersion")
        return b"570.124.06"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        self._enter("nvmlDeviceGetHandleByUUID")
        if uuid not in self.uuids:
            raise self.NVMLError(6)
        return uuid

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        self._enter("nvmlDeviceGetCount")
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        return sorted(self.uuids)[index]

    def nvmlDeviceGetUUID(self, handle: str) -> str:  # noqa: N802
        return handle

    def nvmlDeviceGetName(self, handle: str) -> str:  # noqa: N802
        return "Fake GPU"

    def nvmlDeviceGetCudaComputeCapability(self, handle: str) -> list[int]:  # noqa: N802
        return [9, 0]

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:  # noqa: N802
        self._enter("nvmlDeviceGetMigMode")
        return [0, 0]

    def nvmlDeviceGetMemoryInfo(  # noqa: N802
        self, handle: str, version: int | None = None
    ) -> SimpleNamespace:
        self._enter("nvmlDeviceGetMemoryInfo" + ("_v2" if version else ""))
        used = self.used if version else self.used + self.reserved
        return SimpleNamespace(used=used, total=self.total)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:  # noqa: N802
        self._enter("nvmlDeviceGetComputeRunningProcesses")
        return self.compute

    def nvmlDeviceGetComputeRunningProcesses_v2(self, handle: str) -> list[Any]:  # noqa: N802
        self._enter("nvmlDeviceGetComputeRunningProcesses_v2")
        return self.compute

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: str) -> list[Any]:  # noqa: N802
        self._enter("nvmlDeviceGetGraphicsRunningProcesses")
        return self.graphics

    def nvmlDeviceGetMPSComputeRunningProcesses(self, handle: str) -> list[Any]:  # noqa: N802
        self._enter("nvmlDeviceGetMPSComputeRunningProcesses")
        return self.mps


class FakeTorch:
    """As much of torch as the probe of the GPUs uses; one GPU."""

    __version__ = "2.13.0+cu130"
    uint8 = "uint8"
    version = SimpleNamespace(cuda="13.0", hip=None)

    def __init__(self, total: int = 80 * 1024 * MIB, full: bool = False) -> None:
        properties = SimpleNamespace(
            name="Fake GPU", uuid=UUID, major=9, minor=0, total_memory=total
        )
        self.full = full
        self.cuda = SimpleNamespace(
            is_available=lambda: True,
            device_count=lambda: 1,
            get_device_properties=lambda index: properties,
            synchronize=lambda: None,
            empty_cache=lambda: None,
        )

    def empty(self, size: int, dtype: str, device: str) -> object:
        if self.full:
            raise RuntimeError("CUDA out of memory")
        return object()


def until(condition: Callable[[], bool]) -> None:
    """Wait for ``condition``, at most 10 s."""
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "took more than 10 s"
        time.sleep(0.005)


class PatternProcess:
    """A process of :mod:`pattern_arm`."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, pattern_arm.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, encoding="utf-8",
        )  # fmt: skip
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"
        self.pid = self.process.pid

    def play(self, pattern: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(pattern + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def below(self) -> list[psutil.Process]:
        return psutil.Process(self.pid).children(recursive=True)

    def end(self) -> None:
        below = self.below() if self.process.poll() is None else []
        for process in (*below, self.process):
            process.kill()
        self.process.communicate()
