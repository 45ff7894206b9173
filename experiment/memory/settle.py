"""Wait before each arm until device memory has settled, and find other processes on the GPU.

    reading ─ 100 ms ─ reading ─ 100 ms ─ reading    settled if three readings are equal within
                                                     the tolerance; at most 5 s

Memory freed by the previous arm may be returned with a delay. The last reading is the baseline of
the arm's device figures.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from experiment.events import Baseline, Channel, Event, ForeignProcesses, Notice
from experiment.machine.environment import Environment
from experiment.memory.devices import GpuReader, system_used
from experiment.memory.figure import MemoryFigure, UnreadableError, figure
from experiment.process.process_tree import descendants
from experiment.text.messages import Message, message

READINGS = 3
PAUSE_S = 0.1
LIMIT_S = 5.0
# Other programs change main memory all the time. An idle GPU is constant; its driver allocates in
# pieces of 2 MiB.
TOLERANCE_BYTES = {Channel.SYSTEM: 8 * 2**20, Channel.NVML_DEVICE: 2 * 2**20}


@dataclass(frozen=True, slots=True)
class Settled:
    """The last reading, whether it had settled, and the elapsed seconds."""

    figure: MemoryFigure
    settled: bool
    waited_s: float


def settle(
    read: Callable[[], MemoryFigure],
    tolerance_bytes: int,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Settled:
    """Read until three consecutive readings are equal within the tolerance, at most 5 s.

    Returns at once if the device cannot be read.
    """
    began = clock()
    last: deque[int] = deque(maxlen=READINGS)
    while True:
        seen = read()
        waited = clock() - began
        last.append(seen.bytes or 0)
        settled = len(last) == READINGS and max(last) - min(last) <= tolerance_bytes
        if seen.bytes is None or settled or waited + PAUSE_S > LIMIT_S:
            return Settled(seen, settled and seen.bytes is not None, waited)
        sleep(PAUSE_S)


class DeviceWatch:
    """Observe the device before an arm starts and after it ended, and emit the results.

    The arm uses ``gpus`` GPUs; ``nvml_library`` replaces ``pynvml``.
    """

    def __init__(
        self,
        arm: str,
        environment: Environment,
        emit: Callable[[Event], None],
        nvml_library: Any | None = None,
        gpus: int = 1,
    ) -> None:
        self._arm = arm
        self._environment = environment
        self._emit = emit
        self._library = nvml_library
        self._gpus = gpus
        self._on_gpu = environment.device == "cuda"
        self._before: int | None = None

    def before(self) -> None:
        """Wait until the device has settled; emit the baseline, and a notice if it did not."""
        # CUDA's figure requires a context, which itself takes device memory. Without NVML there is
        # no baseline.
        channel = Channel.NVML_DEVICE if self._on_gpu else Channel.SYSTEM
        with closing(GpuReader(self._environment, self._library, self._gpus)) as gpu:
            result = settle(lambda: self._read(channel, gpu), TOLERANCE_BYTES[channel])
            self._before, reason = self._foreign(gpu, ())
        self._emit(
            Baseline(
                arm=self._arm,
                channel=channel,
                bytes=result.figure.bytes,
                reason=result.figure.reason,
                settled=result.settled,
                waited_s=result.waited_s,
                foreign=self._before,
                foreign_reason=reason,
            )
        )
        if result.settled:
            return
        if (why := result.figure.reason) is not None:
            text = message("settle.unknown", arm=self._arm, reason=why.model_dump())
        else:
            text = message("settle.moving", arm=self._arm, waited=result.waited_s)
        self._emit(Notice(text=text))

    def after(self, ours: Collection[int] = ()) -> None:
        """Count other processes again; ``ours`` are the arm's, which may still be listed."""
        if not self._on_gpu:
            return
        with closing(GpuReader(self._environment, self._library, self._gpus)) as gpu:
            after, reason = self._foreign(gpu, ours)
        before = self._before
        self._emit(ForeignProcesses(arm=self._arm, before=before, after=after, reason=reason))
        if before or after:
            text = message("settle.foreign", arm=self._arm, before=before, after=after)
            self._emit(Notice(text=text))

    def _read(self, channel: Channel, gpu: GpuReader) -> MemoryFigure:
        if channel is Channel.SYSTEM:
            return system_used()
        reason = self._environment.status(channel).reason
        return MemoryFigure(None, reason) if reason else figure(gpu.memory)

    def _foreign(self, gpu: GpuReader, ours: Collection[int]) -> tuple[int | None, Message | None]:
        """Number of other processes on the GPU; None and the reason if unknown."""
        if not self._on_gpu:
            return None, message("memory.device_is_cpu")
        # If the driver does not list our own pids, its list is not usable.
        reason = self._environment.status(Channel.NVML_PROCESS).reason
        if reason is not None:
            return None, reason
        known = {os.getpid(), *ours, *(process.pid for process in descendants(os.getpid()))}
        try:
            return len(gpu.foreign_pids(known)), None
        except UnreadableError as error:
            return None, error.reason
