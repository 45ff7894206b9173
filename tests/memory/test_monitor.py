"""The monitor against real processes and a stand-in for NVML."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import psutil
import pytest
from made_up_machine import cpu_environment, cuda_environment
from memory_fakes import MIB, FakeNvml, PatternProcess, entry, until

from experiment.events import Channel, Event, Reading, Scope, Stage
from experiment.machine.environment import NvmlFacts
from experiment.memory.figure import MemoryFigure
from experiment.memory.monitor import Monitor
from experiment.memory.process_tree import ProcessTree
from experiment.text.messages import message

COMPUTE = "nvmlDeviceGetComputeRunningProcesses"


class Log:
    def __init__(self) -> None:
        self.readings: list[Reading] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, Reading):
            self.readings.append(event)

    def of(self, channel: Channel, stage: Stage | None = None) -> list[Reading]:
        return [r for r in self.readings if r.channel is channel and r.stage is stage]


@pytest.fixture
def log() -> Log:
    return Log()


def monitor(pid: int, log: Log, fake: FakeNvml | None = None, **changes: Any) -> Monitor:
    environment = changes.pop("environment", None)
    if environment is None:
        environment = cuda_environment() if fake else cpu_environment()
    return Monitor("paged", pid, environment, log, changes.pop("interval_ms", 5), fake)


def test_an_unchanged_value_is_repeated_only_every_quarter_second(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProcessTree, "rss", lambda self, **_: MemoryFigure(MIB))
    watch = monitor(os.getpid(), log)
    watch.start()
    until(lambda: len(log.readings) == 3)
    watch.stop()
    gaps = [b.t_ns - a.t_ns for a, b in zip(log.readings, log.readings[1:], strict=False)]
    assert min(gaps) >= 245e6


def test_no_reading_after_stop_and_the_cost_is_known(child: PatternProcess, log: Log) -> None:
    watch = monitor(child.pid, log, interval_ms=1)
    assert watch.cost().cpu_s == 0
    began = time.monotonic()
    watch.start()
    until(lambda: bool(log.readings))
    watch.stop()
    count = len(log.readings)
    assert 0 < watch.cost().cpu_s <= time.monotonic() - began
    time.sleep(0.3)
    assert len(log.readings) == count
    assert not any(thread.name == "memory-paged" for thread in threading.enumerate())


def test_mark_reads_every_host_channel(child: PatternProcess, log: Log) -> None:
    watch = monitor(child.pid, log)
    watch.mark(Stage.CACHE_READY, request=3)
    by_channel = {reading.channel: reading for reading in log.readings}
    assert set(by_channel) == {
        Channel.RSS,
        Channel.USS,
        Channel.PSS,
        Channel.HIGH_WATER,
        Channel.SYSTEM,
    }
    assert {(r.stage, r.request) for r in log.readings} == {(Stage.CACHE_READY, 3)}
    rss = by_channel[Channel.RSS].bytes
    assert rss == pytest.approx(psutil.Process(child.pid).memory_info().rss, abs=8 * MIB)
    assert by_channel[Channel.HIGH_WATER].scope is Scope.PROCESS
    assert by_channel[Channel.SYSTEM].total_bytes == psutil.virtual_memory().total
    assert watch.cost().cpu_s > 0


def test_a_channel_that_the_system_lacks_is_marked_with_its_reason(log: Log) -> None:
    environment = cpu_environment()
    reason = message("memory.not_this_os")
    channels = tuple(
        status.model_copy(update={"usable": False, "reason": reason})
        if status.channel is Channel.PSS
        else status
        for status in environment.channels
    )
    environment = environment.model_copy(update={"channels": channels})
    monitor(os.getpid(), log, environment=environment).mark(Stage.LOADED)
    (reading,) = log.of(Channel.PSS, Stage.LOADED)
    assert (reading.bytes, reading.reason) == (None, reason)
    assert log.of(Channel.USS, Stage.LOADED)[0].bytes


def test_a_process_killed_while_it_is_watched_ends_in_one_unknown(
    child: PatternProcess, log: Log
) -> None:
    watch = monitor(child.pid, log, interval_ms=1)
    watch.start()
    until(lambda: bool(log.readings))
    child.process.kill()
    until(lambda: log.readings[-1].bytes is None)
    child.process.wait()
    time.sleep(0.4)
    watch.stop()
    *known, last = log.of(Channel.RSS)
    assert all(reading.bytes for reading in known)
    assert last.reason == message("memory.process_gone")
    watch.mark(Stage.LAST_STEP)
    assert all(
        reading.bytes is None and reading.reason == message("memory.process_gone")
        for reading in log.readings
        if reading.stage is Stage.LAST_STEP and reading.channel is not Channel.SYSTEM
    )


def test_a_sample_that_raises_is_one_unknown_and_not_the_end(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = threading.Event()

    def rss(self: ProcessTree, **_: object) -> MemoryFigure:
        if broken.is_set():
            raise ValueError("no such luck")
        return MemoryFigure(MIB)

    monkeypatch.setattr(ProcessTree, "rss", rss)
    watch = monitor(os.getpid(), log, interval_ms=1)
    broken.set()
    watch.start()
    until(lambda: len(log.readings) == 1)
    time.sleep(0.4)
    assert len(log.readings) == 1
    assert log.readings[0].bytes is None
    assert log.readings[0].reason == message("memory.sample_failed", error="ValueError")
    broken.clear()
    until(lambda: len(log.readings) == 2)
    watch.stop()
    assert log.readings[1].bytes == MIB


def test_where_the_process_is_hidden_the_device_is_sampled(log: Log) -> None:
    reason = message("memory.nvml_pid_namespace")
    environment = cuda_environment(NvmlFacts(reason=None, process_reason=reason))
    fake = FakeNvml()
    fake.compute = [entry(2**22 + 1, 900 * MIB)]
    watch = monitor(os.getpid(), log, fake, environment=environment)
    watch.start()
    until(lambda: bool(log.of(Channel.NVML_DEVICE)))
    watch.stop()
    watch.mark(Stage.LAST_STEP)
    assert log.of(Channel.NVML_PROCESS) == []
    (marked,) = log.of(Channel.NVML_PROCESS, Stage.LAST_STEP)
    assert (marked.bytes, marked.reason) == (None, reason)


def test_a_gpu_lost_mid_run_is_one_unknown_for_each_channel(log: Log) -> None:
    fake = FakeNvml()
    fake.compute = [entry(os.getpid(), 900 * MIB)]
    watch = monitor(os.getpid(), log, fake, interval_ms=1)
    watch.start()
    until(lambda: bool(log.of(Channel.NVML_PROCESS)))
    fake.errors = {COMPUTE: 15, "nvmlDeviceGetMemoryInfo_v2": 15}
    until(lambda: log.of(Channel.NVML_PROCESS)[-1].bytes is None)
    time.sleep(0.4)
    watch.mark(Stage.LAST_STEP)
    watch.stop()
    lost = message("memory.nvml_gpu_lost")
    assert [r.reason for r in log.of(Channel.NVML_PROCESS) if r.bytes is None] == [lost]
    assert [r.reason for r in log.of(Channel.NVML_DEVICE, Stage.LAST_STEP)] == [lost]
    assert log.of(Channel.RSS, Stage.LAST_STEP)[0].bytes


def test_small_changes_wait_and_the_largest_figure_never_does(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two keepalives: a thousandth is the least that counts, but a peak is exact."""
    sizes = iter([1000 * MIB, 999 * MIB + MIB // 2, 1000 * MIB + 1, 998 * MIB])
    monkeypatch.setattr(ProcessTree, "rss", lambda self, **_: MemoryFigure(next(sizes)))
    watch = monitor(os.getpid(), log)
    for _ in range(4):
        watch._sample()
    assert [r.bytes for r in log.readings] == [1000 * MIB, 1000 * MIB + 1, 998 * MIB]


def test_what_takes_milliseconds_is_read_at_three_stages_alone(log: Log) -> None:
    watch = monitor(os.getpid(), log)
    for stage in Stage:
        watch.mark(stage)
    for channel in (Channel.USS, Channel.PSS):
        assert {stage for stage in Stage if log.of(channel, stage)} == {
            Stage.LOADED, Stage.CACHE_READY, Stage.LAST_STEP,
        }  # fmt: skip
    assert all(log.of(Channel.RSS, stage) for stage in Stage)


def test_one_that_rests_can_be_stopped(log: Log) -> None:
    watch = monitor(os.getpid(), log)
    watch.start()
    until(lambda: bool(log.readings))
    watch.pause()
    assert watch.is_paused
    watch.stop()
    assert watch.failure() is None
