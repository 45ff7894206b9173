"""Compare known amounts of memory with each channel's reading: the checks of ``selfcheck``.

The cost of sampling is reported without a verdict: it depends on background load, not on the
engine.
"""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

from experiment.gpucheck.parts import Task, report
from experiment.memory.nvml import open_nvml
from experiment.process.scratch_directory import scratch_directory
from experiment.process.wire import Wire
from experiment.selfcheck.checks import all_checks
from experiment.text.messages import message

MIB = 2**20
_OURS, _OTHER, _RESERVED = 256 * MIB, 100 * MIB, 500 * MIB
_UUID = "GPU-00000000-0000-0000-0000-000000000000"


class MadeUpNvml:
    """Fake of the part of ``pynvml`` that the two memory channels use."""

    nvmlMemory_v2 = 33554472  # noqa: N815
    NVMLError = NVMLLibraryMismatchError = type("NVMLError", (Exception,), {})

    def __getattr__(self, name: str) -> Any:
        """Any other function: does nothing, or returns an empty list."""
        return lambda *_: []

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        """Handle of the device."""
        return uuid

    def nvmlDeviceGetMemoryInfo(self, _: str, version: int | None = None) -> Any:  # noqa: N802
        """Memory of the device; version 1 counts memory reserved by the driver as used."""
        used = _OURS + _OTHER + (0 if version else _RESERVED)
        return SimpleNamespace(used=used, total=24 * 1024 * MIB)

    def nvmlDeviceGetComputeRunningProcesses(self, _: str) -> list[Any]:  # noqa: N802
        """Our process and another one."""
        held = {os.getpid(): _OURS, 1: _OTHER}
        return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in held.items()]


def check_made_up(wire: Wire) -> None:
    """Check that both channels return the fake's figures."""
    device = open_nvml(MadeUpNvml()).device(_UUID)
    seen = {
        "process": (device.process_bytes({os.getpid()}).bytes, _OURS),
        "device": (device.memory().bytes, _OURS + _OTHER),
    }
    for name, (found, known) in seen.items():
        about = {"channel": message(f"channel.nvml.{name}").model_dump(), "known": known}
        report(wire, f"nvml.{name}", found == known, "gpucheck.made_up", seen=found, **about)


_COST = "sampler.cost."


def check(wire: Wire, task: Task) -> None:
    """Run the checks of ``selfcheck`` on the CPU, and on a GPU or its fake."""
    if not task.on_gpu:
        check_made_up(wire)
    with scratch_directory() as scratch:
        log = scratch / "selfcheck.log"
        try:
            for each in all_checks(log):
                is_cost = each.check.startswith(_COST)
                wire.emit(each.model_copy(update={"passed": None}) if is_cost else each)
        finally:
            if log.exists():  # include it in this part's log
                sys.stderr.write(log.read_text(encoding="utf-8", errors="replace"))
