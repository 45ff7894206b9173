"""Stand-ins for NVML and torch that play failures, and a real process with known patterns."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
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
        self.answers: dict[str, Callable[..., Any]] = {
            "nvmlInit": lambda: None,
            "nvmlShutdown": lambda: None,
            "nvmlSystemGetDriverVersion": lambda: b"570.124.06",
            "nvmlDeviceGetHandleByUUID": self._handle,
            "nvmlDeviceGetCount": lambda: len(self.uuids),
            "nvmlDeviceGetHandleByIndex": lambda index: sorted(self.uuids)[index],
            "nvmlDeviceGetUUID": lambda handle: handle,
            "nvmlDeviceGetName": lambda handle: "Fake GPU",
            "nvmlDeviceGetCudaComputeCapability": lambda handle: [9, 0],
            "nvmlDeviceGetMigMode": lambda handle: [0, 0],
            "nvmlDeviceGetMemoryInfo": self._memory,
            "nvmlDeviceGetComputeRunningProcesses": lambda handle: self.compute,
            "nvmlDeviceGetComputeRunningProcesses_v2": lambda handle: self.compute,
            "nvmlDeviceGetGraphicsRunningProcesses": lambda handle: self.graphics,
            "nvmlDeviceGetMPSComputeRunningProcesses": lambda handle: self.mps,
        }

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in vars(self).get("answers", ()):
            raise AttributeError(name)
        return partial(self._call, name)

    def _call(self, name: str, *arguments: Any) -> Any:
        entered = name + "_v2" * (name.endswith("MemoryInfo") and len(arguments) > 1)
        self.calls.append(entered)
        codes = self.errors.get(entered)
        code = codes.pop(0) if isinstance(codes, list) and codes else codes
        if code == FUNCTION_NOT_FOUND and entered.endswith("RunningProcesses"):
            raise self.NVMLLibraryMismatchError
        if isinstance(code, int):
            raise self.NVMLError(code)
        return self.answers[name](*arguments)

    def _handle(self, uuid: str) -> str:
        if uuid not in self.uuids:
            raise self.NVMLError(6)
        return uuid

    def _memory(self, handle: str, version: int | None = None) -> SimpleNamespace:
        used = self.used if version else self.used + self.reserved
        return SimpleNamespace(used=used, total=self.total)


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


class FakeClock:
    """Time that passes only while somebody sleeps, or a test moves it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
