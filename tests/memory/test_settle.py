"""Waiting for the device to stand still, and counting who else is on it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import partial

import pytest
from made_up_machine import cpu_environment, cuda_environment
from memory_fakes import MIB, FakeClock, FakeNvml, entry

from experiment.events import Baseline, Channel, Event, ForeignProcesses, Notice
from experiment.machine.environment import NvmlFacts
from experiment.memory import settle as module
from experiment.memory.figure import MemoryFigure
from experiment.memory.settle import LIMIT_S, DeviceWatch, settle
from experiment.text import LANGUAGES, Translator
from experiment.text.messages import message

COMPUTE = "nvmlDeviceGetComputeRunningProcesses"
MEMORY = "nvmlDeviceGetMemoryInfo_v2"
STRANGER = 2**22 + 1


def settled(values: Iterator[int | None], tolerance: int = 8) -> tuple[int | None, bool, float]:
    clock = FakeClock()

    def read() -> MemoryFigure:
        value = next(values)
        lost = message("memory.nvml_gpu_lost")
        return MemoryFigure(None, lost) if value is None else MemoryFigure(value)

    result = settle(read, tolerance, clock, clock.sleep)
    return result.figure.bytes, result.settled, pytest.approx(result.waited_s)


@pytest.mark.parametrize(
    ("values", "size", "pauses"),
    [
        ([50, 50, 50], 50, 2),
        ([50, 58, 54], 54, 2),  # within the tolerance
        ([900, 500, 58, 51, 50], 50, 4),  # still being given back
    ],
)
def test_three_like_readings_are_enough(values: list[int | None], size: int, pauses: int) -> None:
    assert settled(iter(values)) == (size, True, pauses * module.PAUSE_S)


def test_a_slow_drift_is_not_settled_by_being_slow() -> None:
    """Each reading is near the one before, and the three together are not."""
    drift = iter(range(0, 10_000, 5))
    _, done, waited = settled(drift)
    assert not done
    assert waited == LIMIT_S


def test_a_device_that_cannot_be_read_is_not_waited_for() -> None:
    assert settled(iter([50, None])) == (None, False, module.PAUSE_S)


class Watched:
    """A watch on a stand-in for NVML, whose time does not pass."""

    def __init__(self, fake: FakeNvml, nvml: NvmlFacts | None = None) -> None:
        self.events: list[Event] = []
        self.watch = DeviceWatch("paged", cuda_environment(nvml), self.events.append, fake)

    @property
    def baseline(self) -> Baseline:
        return next(e for e in self.events if isinstance(e, Baseline))

    @property
    def foreign(self) -> ForeignProcesses:
        return next(e for e in self.events if isinstance(e, ForeignProcesses))

    @property
    def notices(self) -> list[str]:
        """Keys of the notices, each rendered once in every language."""
        texts = [e.text for e in self.events if isinstance(e, Notice)]
        for lang in LANGUAGES:
            assert all(Translator(lang).message(text) for text in texts)
        return [text.key for text in texts]


@pytest.fixture(autouse=True)
def no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch waits on a clock of its own."""
    clock = FakeClock()
    monkeypatch.setattr(module, "settle", partial(settle, clock=clock, sleep=clock.sleep))


def test_the_baseline_of_a_quiet_gpu() -> None:
    fake = FakeNvml()
    watched = Watched(fake)
    watched.watch.before()
    watched.watch.after()
    baseline = watched.baseline
    assert (baseline.arm, baseline.channel) == ("paged", Channel.NVML_DEVICE)
    assert (baseline.bytes, baseline.settled, baseline.reason) == (fake.used, True, None)
    assert (baseline.foreign, baseline.foreign_reason) == (0, None)
    assert (watched.foreign.before, watched.foreign.after) == (0, 0)
    assert watched.notices == []
    assert fake.calls.count("nvmlInit") == fake.calls.count("nvmlShutdown") == 2


def test_a_gpu_that_moves_never_settles_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml()
    monkeypatch.setattr(
        FakeNvml, "used", property(lambda self: len(self.calls) * 3 * MIB, lambda *_: None),
        raising=False,
    )  # fmt: skip
    watched = Watched(fake)
    watched.watch.before()
    assert not watched.baseline.settled
    assert watched.baseline.bytes
    assert watched.notices == ["settle.moving"]


def test_strangers_are_counted_and_ours_are_not() -> None:
    fake = FakeNvml()
    fake.compute = [entry(os.getpid(), MIB), entry(STRANGER, None)]
    watched = Watched(fake)
    watched.watch.before()
    fake.compute = [entry(STRANGER, None), entry(STRANGER + 1, 5 * MIB), entry(77, 5 * MIB)]
    fake.graphics = [entry(STRANGER, None)]
    watched.watch.after(ours=[77])
    assert watched.baseline.foreign == 1
    assert (watched.foreign.before, watched.foreign.after) == (1, 2)
    assert watched.notices == ["settle.foreign"]


def test_without_the_library_all_is_unknown() -> None:
    reason = message("memory.nvml_no_library")
    fake = FakeNvml({"nvmlInit": 12})
    watched = Watched(fake, NvmlFacts(reason=reason))
    watched.watch.before()
    watched.watch.after()
    baseline = watched.baseline
    assert (baseline.bytes, baseline.reason, baseline.settled) == (None, reason, False)
    assert (baseline.foreign, baseline.foreign_reason) == (None, reason)
    assert (watched.foreign.after, watched.foreign.reason) == (None, reason)
    assert watched.notices == ["settle.unknown"]
    assert fake.calls == []


def test_a_gpu_that_is_lost_is_unknown_from_then_on() -> None:
    fake = FakeNvml()
    watched = Watched(fake)
    watched.watch.before()
    fake.errors = {COMPUTE: 15}
    watched.watch.after()
    lost = message("memory.nvml_gpu_lost")
    assert watched.baseline.bytes == fake.used
    assert (watched.foreign.before, watched.foreign.after) == (0, None)
    assert watched.foreign.reason == lost
    fake = FakeNvml({MEMORY: 15, COMPUTE: 15})
    watched = Watched(fake)
    watched.watch.before()
    assert (watched.baseline.bytes, watched.baseline.reason) == (None, lost)
    assert (watched.baseline.foreign, watched.baseline.foreign_reason) == (None, lost)


def test_hidden_processes_are_unknown_and_not_0() -> None:
    """An empty list, or one of other numbers, says nothing where ours are not in it."""
    reason = message("memory.nvml_pid_namespace")
    for compute in ([], [entry(STRANGER, 900 * MIB)]):
        fake = FakeNvml()
        fake.compute = list(compute)
        watched = Watched(fake, NvmlFacts(reason=None, process_reason=reason))
        watched.watch.before()
        watched.watch.after()
        assert watched.baseline.settled
        assert (watched.baseline.foreign, watched.baseline.foreign_reason) == (None, reason)
        assert (watched.foreign.before, watched.foreign.after) == (None, None)
        assert watched.foreign.reason == reason
        assert watched.notices == []


@pytest.mark.skipif(sys.platform != "linux", reason="one system is enough")
def test_on_the_cpu_main_memory_is_the_baseline_and_nvml_is_left_alone() -> None:
    fake = FakeNvml()
    events: list[Event] = []
    watch = DeviceWatch("paged", cpu_environment(), events.append, fake)
    watch.before()
    watch.after()
    baseline = next(e for e in events if isinstance(e, Baseline))
    assert baseline.channel is Channel.SYSTEM
    assert baseline.bytes
    assert baseline.foreign is None
    assert baseline.foreign_reason is not None
    assert not [e for e in events if isinstance(e, ForeignProcesses)]
    assert fake.calls == []
