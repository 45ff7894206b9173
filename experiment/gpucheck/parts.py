"""The parts of ``gpucheck`` in order, and their task.

Each part is a module with a function ``check(wire, task)`` that emits Check events. It runs in a
separate child process (:mod:`experiment.gpucheck.child`), which imports only that module.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from experiment.events import Check
from experiment.process.wire import Wire
from experiment.text.errors import one_line
from experiment.text.messages import message


@dataclass(frozen=True, slots=True)
class Part:
    """One part.

    Attributes:
        module: module with its ``check``.
        share: share of the remaining time, relative to the shares of later parts.
        needs_gpu: whether it is skipped without a GPU.
        uses_triton: whether its kernels run in Triton's interpreter without a GPU.
        needs_kernels: whether it is skipped on a GPU that is too old for our kernels.
    """

    name: str
    module: str
    share: float
    needs_gpu: bool = False
    uses_triton: bool = False
    needs_kernels: bool = False


PARTS = (
    Part("environment", "experiment.gpucheck.machine", 0.10),
    Part("kernels", "experiment.gpucheck.kernels", 0.28, uses_triton=True, needs_kernels=True),
    Part("tokens", "experiment.gpucheck.tokens", 0.13, uses_triton=True),
    Part("memory", "experiment.gpucheck.memory", 0.13),
    Part("graphs", "experiment.gpucheck.graphs", 0.06, needs_gpu=True, needs_kernels=True),
    Part("swap", "experiment.gpucheck.swap", 0.06, needs_gpu=True),
    Part("walkthrough", "experiment.gpucheck.walkthrough", 0.20),
    Part("speed", "experiment.gpucheck.speed", 0.04, needs_gpu=True, needs_kernels=True),
)


@dataclass(frozen=True, slots=True)
class Task:
    """Task of a part.

    Attributes:
        device: torch's name of the device.
        directory: output directory of the check.
        deadline: seconds on the system's monotonic clock, when the part is ended.
    """

    part: Part
    device: str
    directory: Path
    deadline: float

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device != "cpu"


def as_task(part: Part, directory: Path, limit_s: float, device: str | None) -> dict[str, Any]:
    """The task of a child process that starts now, as plain data; ``device`` if it is known."""
    return {
        "arm": part.name, "part": asdict(part), "directory": str(directory), "device": device,
        "deadline": time.monotonic() + limit_s,
    }  # fmt: skip


def report(wire: Wire, check: str, passed: bool | None, key: str, /, **params: Any) -> None:
    """Emit one check; ``key`` and ``params`` are those of its message."""
    wire.emit(Check(check=check, passed=passed, text=message(key, **params)))


@contextmanager
def errors_fail(wire: Wire, check: str, key: str, /, **params: Any) -> Iterator[None]:
    """Emit any error of the block, its compiler or driver as a failed check with its text.

    The traceback is in the part's log.
    """
    try:
        yield
    except Exception as error:
        traceback.print_exc()
        report(wire, check, False, key, error=one_line(error), **params)
