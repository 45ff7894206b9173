"""Watches the memory of one arm's process from outside, while it runs and when it stands still.

    thread   every interval   tree RSS, NVML                    Reading(stage=None)
    mark()   arm stands still every channel of the ladder       Reading(stage=…)

A thread, not a process: a sample costs a fraction of a millisecond of the runner, which has
nothing else to do meanwhile; ``cpu_seconds`` says what it cost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import psutil

from experiment.environment import ChannelStatus, Environment
from experiment.events import Channel, Event, Reading, Stage
from experiment.memory.figure import Figure, missing, unavailable
from experiment.memory.nvml import Nvml, NvmlDevice, NvmlError, open_nvml
from experiment.memory.process_tree import ProcessTree, TreeDetails
from experiment.messages import Message, message

KEEPALIVE_S = 0.25
STOP_TIMEOUT_S = 5.0
SAMPLED = (Channel.RSS, Channel.NVML_PROCESS, Channel.NVML_DEVICE)
MARKED = (
    Channel.RSS,
    Channel.USS,
    Channel.PSS,
    Channel.HIGH_WATER,
    Channel.NVML_PROCESS,
    Channel.NVML_DEVICE,
    Channel.SYSTEM,
)


class Monitor:
    """Samples the tree below ``pid`` every ``interval_ms`` and emits readings.

    While the arm runs a reading is emitted only if its value differs from the last one emitted
    or 250 ms have passed, so that the log stays small; a value that is missing is emitted once
    for each reason. ``emit`` is called from the sampler's thread and from that of :meth:`mark`,
    never from both at once. ``nvml_library`` stands in for ``pynvml``.
    """

    def __init__(
        self,
        arm: str,
        pid: int,
        environment: Environment,
        emit: Callable[[Event], None],
        interval_ms: int,
        nvml_library: Any | None = None,
    ) -> None:
        self._arm = arm
        self._environment = environment
        self._emit = emit
        self._interval_s = interval_ms / 1000
        self._tree = ProcessTree(pid)
        self._gpu = _GpuReader(environment, nvml_library)
        self._lock = threading.RLock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"memory-{arm}", daemon=True)
        self._sampled = tuple(channel for channel in SAMPLED if self._is_sampled(channel))
        self._last: dict[Channel, tuple[int | None, Message | None, float]] = {}
        self._cpu_ns = 0
        self._error: Exception | None = None

    @property
    def cpu_seconds(self) -> float:
        """CPU time in seconds that sampling has cost so far, marks included."""
        return self._cpu_ns / 1e9

    @property
    def error(self) -> Exception | None:
        """The last error that ``emit`` raised in the sampler's thread, which goes on regardless."""
        return self._error

    def start(self) -> None:
        """Start sampling."""
        self._thread.start()

    def stop(self) -> None:
        """Stop sampling and wait for the sampler; no sample is emitted afterwards."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(STOP_TIMEOUT_S)
        # A sampler that hangs in the driver is left behind; it ends with the process.
        if not self._thread.is_alive():
            self._gpu.close()

    def mark(self, stage: Stage, request: int | None = None) -> None:
        """Read every process and device channel of the ladder now and emit them with ``stage``.

        A channel that should tell something about this device and cannot is emitted as None
        with its reason. Returns when all are emitted, so the arm may go on.
        """
        began = time.thread_time_ns()
        with self._lock:
            for status, figure in self._take(MARKED, fresh=True):
                self._send(status, figure, stage, request)
            self._cpu_ns += time.thread_time_ns() - began

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stopping.is_set():
            began = time.thread_time_ns()
            with self._lock:
                try:
                    self._sample()
                except Exception as error:  # a reading that cannot be written must not end all
                    self._error = error
                self._cpu_ns += time.thread_time_ns() - began
            # A sample that took longer than the interval delays the next instead of crowding it.
            due = max(due + self._interval_s, time.monotonic())
            self._stopping.wait(max(0.0, due - time.monotonic()))

    def _sample(self) -> None:
        for status, figure in self._take(self._sampled, fresh=False):
            if self._stopping.is_set():
                return
            if self._is_news(status.channel, figure):
                self._send(status, figure, None, None)
                self._last[status.channel] = (figure.bytes, figure.reason, time.monotonic())

    def _is_sampled(self, channel: Channel) -> bool:
        status = self._environment.status(channel)
        # The figure of the device counts other processes too: only where there is no better one.
        better = channel is Channel.NVML_DEVICE and status.role != "primary"
        return status.usable and status.role != "unused" and not better

    def _is_news(self, channel: Channel, figure: Figure) -> bool:
        last = self._last.get(channel)
        if last is None or (figure.bytes, figure.reason) != last[:2]:
            return True
        return figure.bytes is not None and time.monotonic() - last[2] >= KEEPALIVE_S

    def _send(
        self, status: ChannelStatus, figure: Figure, stage: Stage | None, request: int | None
    ) -> None:
        on_gpu = status.channel in (Channel.NVML_PROCESS, Channel.NVML_DEVICE)
        gpu = self._environment.gpu
        self._emit(
            Reading(
                arm=self._arm,
                channel=status.channel,
                scope=status.scope,
                bytes=figure.bytes,
                reason=figure.reason,
                stage=stage,
                request=request,
                device=gpu.uuid if on_gpu and gpu is not None else None,
                total_bytes=figure.total_bytes,
            )
        )

    def _take(
        self, channels: tuple[Channel, ...], *, fresh: bool
    ) -> list[tuple[ChannelStatus, Figure]]:
        """Read ``channels``, those that this device has no use for left out."""
        statuses = [self._environment.status(channel) for channel in channels]
        statuses = [status for status in statuses if status.role != "unused"]
        readers = self._readers(fresh=fresh)
        return [
            (status, unavailable(status.reason) if status.reason else _safely(read))
            for status in statuses
            for read in (readers[status.channel],)
        ]

    def _readers(self, *, fresh: bool) -> dict[Channel, Callable[[], Figure]]:
        details = _Once(self._tree.details)
        return {
            Channel.RSS: lambda: self._tree.rss(fresh=fresh),
            Channel.USS: lambda: details().uss,
            Channel.PSS: lambda: details().pss,
            Channel.HIGH_WATER: lambda: details().high_water,
            Channel.NVML_PROCESS: lambda: self._gpu.process_bytes(self._tree.pids()),
            Channel.NVML_DEVICE: lambda: self._gpu.device().memory(),
            Channel.SYSTEM: _system,
        }


class _GpuReader:
    """The GPU of the run, opened when it is first read."""

    def __init__(self, environment: Environment, library: Any | None) -> None:
        self._environment = environment
        self._library = library
        self._nvml: Nvml | None = None
        self._device: NvmlDevice | None = None
        self._failure: NvmlError | None = None

    def device(self) -> NvmlDevice:
        """Open the device once.

        Raises:
            NvmlError: it could not be opened; it is not tried again.
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

    def process_bytes(self, pids: frozenset[int]) -> Figure:
        """Bytes of the processes ``pids``.

        Raises:
            NvmlError: the device could not be opened.
        """
        return self.device().process_bytes(pids) if pids else missing("memory.process_gone")

    def close(self) -> None:
        """Give NVML back."""
        if self._nvml is not None:
            self._nvml.close()
        self._nvml = self._device = None

    def _open(self) -> NvmlDevice:
        gpu = self._environment.gpu
        if gpu is None or gpu.uuid is None:
            raise NvmlError(message("memory.nvml_gpu_not_found"))
        self._nvml = open_nvml(self._library)
        return self._nvml.device(gpu.uuid)


class _Once:
    """Takes the details of the tree once for the three channels that come from them."""

    def __init__(self, take: Callable[[], TreeDetails]) -> None:
        self._take = take
        self._value: TreeDetails | None = None

    def __call__(self) -> TreeDetails:
        if self._value is None:
            self._value = self._take()
        return self._value


def _safely(read: Callable[[], Figure]) -> Figure:
    try:
        return read()
    except NvmlError as error:
        return unavailable(error.reason)
    except Exception as error:
        # Without the text, which may differ each time, one failure is one reading.
        return missing("memory.sample_failed", error=type(error).__name__)


def _system() -> Figure:
    memory = psutil.virtual_memory()
    # What a new process could not have; "used" leaves out caches that cannot be dropped.
    return Figure(memory.total - memory.available, total_bytes=memory.total)
