"""How busy processor and GPU are: real processes, and a stand-in for NVML."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from made_up_machine import cpu_environment, cuda_environment
from memory_fakes import FakeClock, FakeNvml, until

from experiment.events import (
    Event,
    Usage,
)
from experiment.machine.environment import Environment
from experiment.memory import usage
from experiment.memory.devices import GpuReader
from experiment.memory.monitor import Monitor
from experiment.memory.process_tree import CpuSeconds, ProcessTree
from experiment.memory.usage import EVERY_S, UsageMeter
from experiment.text.messages import message

RATES = "nvmlDeviceGetUtilizationRates"
SPIN = "while True: pass"
IDLE = "import time; time.sleep(60)"


class UsageNvml(FakeNvml):
    """The stand-in with utilisation rates."""

    def __init__(self, errors: Any = None) -> None:
        super().__init__(errors)
        self.answers[RATES] = lambda handle: SimpleNamespace(gpu=63, memory=12)


@pytest.fixture
def run() -> Iterator[Any]:
    started: list[subprocess.Popen[bytes]] = []

    def start(code: str) -> int:
        started.append(subprocess.Popen([sys.executable, "-c", code]))
        return started[-1].pid

    yield start
    for process in started:
        below = psutil.Process(process.pid).children() if process.poll() is None else []
        for member in (process, *below):
            member.kill()
        process.wait()


def meter(pid: int, environment: Environment, fake: FakeNvml | None = None, **changes: Any) -> Any:
    reader = GpuReader(environment, fake)
    return UsageMeter("paged", environment, ProcessTree(pid), reader, **changes)


def measure(pid: int) -> float:
    """Cores over about a second of real time."""
    watch = meter(pid, cpu_environment())
    assert watch.take() is None
    time.sleep(1)
    cores = watch.take().cpu_cores
    assert cores is not None
    return float(cores)


def test_a_process_that_computes_takes_a_core_and_one_that_sleeps_none(run: Any) -> None:
    spinning = measure(run(SPIN))
    assert 0.3 < spinning <= 1.1
    idle = run(IDLE)
    time.sleep(0.3)  # its interpreter has started
    assert measure(idle) < 0.1


def test_what_came_before_it_began_anew_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """As between two turns of an arm: others worked meanwhile, and so did a library's threads."""
    root = iter([1.0, 50.0, 50.1, 50.2])
    monkeypatch.setattr(ProcessTree, "cpu_times", lambda self: {"root": CpuSeconds(next(root))})
    monkeypatch.setattr(usage, "system_seconds", lambda: None)
    clock = FakeClock()
    watch = meter(os.getpid(), cpu_environment(), clock=clock)
    assert watch.take() is None
    clock.now += 60
    watch.begin()
    clock.now += EVERY_S
    assert watch.take().cpu_cores == pytest.approx(0.1 / EVERY_S)
    clock.now += EVERY_S / 5
    assert watch.take() is None
    assert watch.take(force=True).cpu_cores == pytest.approx(0.1 / (EVERY_S / 5))


def test_on_the_cpu_the_gpu_is_unknown_and_left_alone() -> None:
    clock, fake = FakeClock(), UsageNvml()
    watch = meter(os.getpid(), cpu_environment(), fake, clock=clock)
    watch.take()
    clock.now += 1
    usage = watch.take()
    assert (usage.gpu_share, usage.gpu_memory_share) == (None, None)
    assert usage.gpu_reason == message("memory.device_is_cpu")
    assert usage.cpu_cores is not None
    assert usage.reason is None
    assert fake.calls == []


def on_gpu(fake: FakeNvml, environment: Environment | None = None) -> Usage:
    clock = FakeClock()
    watch = meter(os.getpid(), environment or cuda_environment(), fake, clock=clock)
    watch.take()
    clock.now += 1
    usage = watch.take()
    assert isinstance(usage, Usage)
    assert usage.cpu_cores is not None
    return usage


def test_shares_of_the_gpu_are_from_0_to_1() -> None:
    usage = on_gpu(UsageNvml())
    assert (usage.gpu_share, usage.gpu_memory_share) == (0.63, 0.12)
    assert usage.gpu_reason is None


@pytest.mark.parametrize(
    ("errors", "key"),
    [
        ({"nvmlInit": 12}, "memory.nvml_no_library"),
        ({RATES: 15}, "memory.nvml_gpu_lost"),
        ({RATES: 3}, "memory.nvml_not_supported"),
        ({RATES: 4}, "memory.nvml_no_permission"),
    ],
    ids=["no library", "lost", "MIG", "no permission"],
)
def test_what_the_gpu_does_not_say_is_unknown_and_not_0(errors: Any, key: str) -> None:
    usage = on_gpu(UsageNvml(errors))
    assert (usage.gpu_share, usage.gpu_memory_share) == (None, None)
    assert usage.gpu_reason == message(key)


def test_a_process_that_has_ended_is_unknown_once(run: Any) -> None:
    pid = run(IDLE)
    clock = FakeClock()
    watch = meter(pid, cpu_environment(), clock=clock)
    watch.take()
    psutil.Process(pid).kill()
    until(lambda: psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    time.sleep(EVERY_S)
    clock.now += 1
    usage = watch.take()
    assert (usage.cpu_cores, usage.reason) == (None, message("memory.process_gone"))
    clock.now += 1
    assert watch.take() is None


def test_the_monitor_emits_usage_beside_its_samples() -> None:
    events: list[Event] = []
    monitor = Monitor("paged", os.getpid(), cuda_environment(), events.append, 5, UsageNvml())
    monitor.start()
    until(lambda: any(isinstance(event, Usage) for event in events))
    monitor.stop()
    usage = next(event for event in events if isinstance(event, Usage))
    assert (usage.arm, usage.gpu_share) == ("paged", 0.63)
