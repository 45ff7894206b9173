"""Samples the memory of an arm's process from outside, while it runs and at its stages.

    thread   every interval    tree RSS, NVML                   Reading(stage=None)
             every 250 ms      CPU time, GPU utilisation        Usage
    mark()   arm is paused     every channel of the ladder      Reading(stage=…)

A thread suffices: a sample costs the otherwise idle runner a fraction of a millisecond;
:meth:`Monitor.cost` measures it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import psutil

from experiment.events import Channel, Event, HighWaterReset, Notice, Reading, SamplerCost, Stage
from experiment.machine.environment import ChannelStatus, Environment
from experiment.memory.devices import GpuReader, system_used
from experiment.memory.figure import MemoryFigure, figure
from experiment.memory.process_tree import ProcessTree
from experiment.memory.usage import UsageMeter
from experiment.text.messages import Message, message

KEEPALIVE_S = 0.25
# Smaller relative changes are not logged, unless they are the largest value so far.
CHANGE_SHARE = 0.001
STOP_TIMEOUT_S = 5.0
SAMPLED = (Channel.RSS, Channel.NVML_PROCESS, Channel.NVML_DEVICE)
# The kernel walks every page of the tree for these, which takes milliseconds. They are read where
# the KV cache is separated from the rest, and after everything has been touched.
_EXPENSIVE_CHANNELS = (Channel.USS, Channel.PSS)
_EXPENSIVE_STAGES = (Stage.LOADED, Stage.CACHE_READY, Stage.LAST_STEP)
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
    """Sample the process tree of ``pid`` every ``interval_ms`` and emit readings.

    While the arm runs, only some readings are emitted: a new maximum, a change of 0.1 %, and one at
    least every 250 ms. This keeps the log small and the peak exact. A missing value is emitted once
    for each reason. ``emit`` is called from the sampler's thread and from that of :meth:`mark`,
    never concurrently. ``nvml_library`` replaces ``pynvml``; the arm uses ``gpus`` GPUs.
    """

    def __init__(
        self,
        arm: str,
        pid: int,
        environment: Environment,
        emit: Callable[[Event], None],
        interval_ms: int,
        nvml_library: Any | None = None,
        gpus: int = 1,
    ) -> None:
        self._arm = arm
        self._environment = environment
        self._emit = emit
        self._interval_s = interval_ms / 1000
        self._tree = ProcessTree(pid)
        self._gpu = GpuReader(environment, nvml_library, gpus)
        self._usage = UsageMeter(arm, environment, self._tree, self._gpu)
        self._lock = threading.RLock()
        self._stopping = threading.Event()
        self._awake = threading.Event()
        self._awake.set()
        self._thread = threading.Thread(target=self._run, name=f"memory-{arm}", daemon=True)
        readers = self._readers(fresh=False)
        self._sampled = tuple(
            (environment.status(channel), readers[channel])
            for channel in SAMPLED
            if self._is_sampled(channel)
        )
        self._last: dict[Channel, tuple[int | None, Message | None, float]] = {}
        self._most: dict[Channel, int] = {}
        self._sampler_ns = 0
        self._marks_ns = 0
        self._started_s: float | None = None
        self._sampled_s = 0.0
        self._error: BaseException | None = None
        self._lost = 0
        self._ended = False

    def observed_processes(self) -> frozenset[psutil.Process]:
        """All processes of the arm that were ever found, including ended ones."""
        return frozenset(self._tree.observed_processes)

    def cost(self) -> SamplerCost:
        """Cost of sampling from :meth:`start` to :meth:`stop`: with marks, without pauses."""
        cpu_s = (self._sampler_ns + self._marks_ns) / 1e9
        return SamplerCost(arm=self._arm, cpu_s=cpu_s, wall_s=self._sampled_s)

    def failure(self) -> Message | None:
        """Whether samples were lost or the sampler ended early, as a message; otherwise None."""
        if self._ended:
            return message("usage.sampler_ended", arm=self._arm, error=type(self._error).__name__)
        if self._lost:
            error = type(self._error).__name__
            return message("usage.sampler_lost", arm=self._arm, n=self._lost, error=error)
        return None

    def start(self) -> None:
        """Start sampling; :meth:`failure` reports it if the thread cannot be started."""
        self._started_s = time.monotonic()
        try:
            self._thread.start()
        except RuntimeError as error:
            self._error, self._ended = error, True

    def pause(self) -> None:
        """Take no samples until :meth:`resume`: another arm is measured."""
        with self._lock:
            with self._counting_failures():
                self._emit_usage(force=True)
            self._awake.clear()
        self._count_time()

    @property
    def is_paused(self) -> bool:
        """Whether sampling is paused."""
        return not self._awake.is_set()

    def resume(self) -> None:
        """Continue sampling."""
        with self._lock:
            with self._counting_failures():
                self._usage.begin()
            self._started_s = time.monotonic()
            self._awake.set()

    def _count_time(self) -> None:
        """Add the time since the start, or since the last pause, to the sampled time."""
        if self._started_s is not None:
            self._sampled_s += time.monotonic() - self._started_s
            self._started_s = None

    def stop(self) -> None:
        """Stop sampling and wait for the sampler; no sample is emitted afterwards."""
        self._stopping.set()
        self._awake.set()
        if self._thread.ident is not None:
            self._thread.join(STOP_TIMEOUT_S)
        self._count_time()
        if not self._thread.is_alive():
            self._gpu.close()
            return
        # A sampler that hangs in the driver is abandoned; it ends with the process.
        self._error, self._ended = TimeoutError(), True

    def mark(self, stage: Stage, request: int | None = None) -> None:
        """Read all process and device channels of the ladder and emit them with ``stage``.

        Expensive channels are read at three stages only. A channel that applies to the device and
        fails is emitted as None with its reason. The arm may continue when this returns.
        """
        began = time.thread_time_ns()
        with self._lock:
            excluded = () if stage in _EXPENSIVE_STAGES else _EXPENSIVE_CHANNELS
            readers = self._readers(fresh=True)
            # First read, then emit: the readings belong together.
            figures = [
                (status, _read(status, readers[status.channel]))
                for status in map(self._environment.status, MARKED)
                if status.channel not in excluded and status.role != "unused"
            ]
            for status, seen in figures:
                self._send(status, seen, stage, request)
            if stage is Stage.CACHE_READY:
                self._reset_high_water()
            self._marks_ns += time.thread_time_ns() - began

    def _reset_high_water(self) -> None:
        """Reset the high-water mark before generation: loading may have needed more."""
        if not self._environment.status(Channel.HIGH_WATER).usable:
            return
        reason = self._tree.reset_high_water()
        self._emit(HighWaterReset(arm=self._arm, reason=reason))
        if reason is not None:
            why = reason.model_dump()
            self._emit(Notice(text=message("usage.mark_not_reset", arm=self._arm, reason=why)))

    def _run(self) -> None:
        due = time.monotonic()
        try:
            while not self._stopping.is_set():
                self._awake.wait()
                with self._lock, self._counting_failures():
                    if not (self.is_paused or self._stopping.is_set()):
                        self._sample()
                self._sampler_ns = time.thread_time_ns()  # CPU time of this thread
                # A sample that took longer than the interval delays the next one.
                due = max(due + self._interval_s, time.monotonic())
                self._stopping.wait(due - time.monotonic())
        except BaseException as error:  # the record must show that sampling ended
            self._error, self._ended = error, True

    @contextlib.contextmanager
    def _counting_failures(self) -> Iterator[None]:
        """Count a failed reading instead of raising; :meth:`failure` reports it."""
        try:
            yield
        except Exception as error:
            self._error = error
            self._lost += 1

    def _emit_usage(self, *, force: bool = False) -> None:
        usage = self._usage.take(force=force)
        if usage is not None:
            self._emit(usage)

    def _sample(self) -> None:
        for status, read in self._sampled:
            seen = _read(status, read)
            if self._stopping.is_set():
                return
            if self._is_notable(status.channel, seen):
                self._send(status, seen, None, None)
                self._last[status.channel] = (seen.bytes, seen.reason, time.monotonic())
        self._emit_usage()

    def _is_sampled(self, channel: Channel) -> bool:
        status = self._environment.status(channel)
        # The device's figure includes other processes: use it only without a better channel.
        better = channel is Channel.NVML_DEVICE and status.role != "primary"
        return status.usable and status.role != "unused" and not better

    def _is_notable(self, channel: Channel, seen: MemoryFigure) -> bool:
        last = self._last.get(channel)
        if seen.bytes is not None and seen.bytes > self._most.get(channel, -1):
            self._most[channel] = seen.bytes
            return True
        if last is None or seen.bytes is None or last[0] is None:
            return last is None or (seen.bytes, seen.reason) != last[:2]
        moved = abs(seen.bytes - last[0]) > CHANGE_SHARE * last[0]
        return moved or time.monotonic() - last[2] >= KEEPALIVE_S

    def _send(
        self, status: ChannelStatus, seen: MemoryFigure, stage: Stage | None, request: int | None
    ) -> None:
        on_gpu = status.channel in (Channel.NVML_PROCESS, Channel.NVML_DEVICE)
        uuids = [uuid for uuid in self._gpu.uuids if uuid is not None]
        self._emit(
            Reading(
                arm=self._arm,
                channel=status.channel,
                scope=status.scope,
                bytes=seen.bytes,
                reason=seen.reason,
                stage=stage,
                request=request,
                device=",".join(uuids) if on_gpu and uuids else None,
                total_bytes=seen.total_bytes,
            )
        )

    def _readers(self, *, fresh: bool) -> dict[Channel, Callable[[], MemoryFigure]]:
        details = self._tree.details()
        return {
            Channel.RSS: partial(self._tree.rss, fresh=fresh),
            Channel.USS: details["uss"],
            Channel.PSS: details["pss"],
            Channel.HIGH_WATER: self._tree.high_water,
            Channel.NVML_PROCESS: lambda: self._gpu.process_bytes(self._tree.pids()),
            Channel.NVML_DEVICE: self._gpu.memory,
            Channel.SYSTEM: system_used,
        }


def _read(status: ChannelStatus, read: Callable[[], MemoryFigure]) -> MemoryFigure:
    """Read a channel; unknown if it is not usable or fails."""
    if status.reason is not None:
        return MemoryFigure(None, status.reason)
    try:
        return figure(read)
    except Exception as error:
        # Without the error's text, which may vary, repeated failures are one reading.
        failed = message("memory.sample_failed", error=type(error).__name__)
        return MemoryFigure(None, failed)
