"""Known patterns of a real process, as the monitor sees them.

A figure may be off by 8 MiB, which is what the interpreter does meanwhile; an interpreter that
is started adds up to 24 MiB of its own to figures of the tree.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pattern_arm
import pytest
from made_up_machine import cpu_environment
from memory_fakes import MIB, PatternProcess

from experiment.events import Channel, Event, HighWaterReset, Reading, Stage
from experiment.memory.figure import MemoryFigure
from experiment.memory.monitor import Monitor
from experiment.memory.process_tree import ProcessTree
from experiment.text.messages import Message, message

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and glibc")
TOLERANCE = 8 * MIB


class Arm(PatternProcess):
    """The process, its monitor, and what was emitted."""

    def __init__(self, interval_ms: int = 5) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.monitor = Monitor(
            "pattern", self.pid, cpu_environment(), self.events.append, interval_ms
        )

    def mark(self, stage: Stage) -> dict[Channel, int]:
        """Every channel now."""
        count = len(self.events)
        self.monitor.mark(stage)
        readings = [e for e in self.events[count:] if isinstance(e, Reading) and e.stage is stage]
        assert all(reading.bytes is not None for reading in readings)
        return {reading.channel: reading.bytes or 0 for reading in readings}

    def samples(self) -> list[int]:
        found = [e for e in self.events if isinstance(e, Reading) and e.stage is None]
        return [e.bytes for e in found if e.channel is Channel.RSS and e.bytes is not None]

    def end(self) -> None:
        self.monitor.stop()
        super().end()


@pytest.fixture
def arm() -> Iterator[Arm]:
    made = Arm()
    yield made
    made.end()


def near(size: int) -> object:
    return pytest.approx(size, abs=TOLERANCE)


def test_a_ramp_is_seen_step_by_step(arm: Arm) -> None:
    before = arm.mark(Stage.LOADED)[Channel.RSS]
    arm.monitor.start()
    arm.play("ramp")
    arm.monitor.stop()
    grown = [size - before for size in arm.samples()]
    assert max(grown) == near(pattern_arm.RAMP_STEPS * pattern_arm.RAMP_BYTES)
    levels = {round(size / pattern_arm.RAMP_BYTES) for size in grown}
    # A machine that is busy may skip a step or another, never half of them.
    assert len(levels) > pattern_arm.RAMP_STEPS / 2
    assert grown == sorted(grown)


def test_the_mark_counts_from_cache_ready(arm: Arm) -> None:
    arm.play("spike")
    loading = arm.mark(Stage.CACHE_READY)
    assert loading[Channel.HIGH_WATER] - loading[Channel.RSS] == near(pattern_arm.SPIKE_BYTES)
    assert [e.reason for e in arm.events if isinstance(e, HighWaterReset)] == [None]
    peak = arm.mark(Stage.LAST_STEP)
    assert peak[Channel.HIGH_WATER] == near(peak[Channel.RSS])
    assert len([e for e in arm.events if isinstance(e, HighWaterReset)]) == 1


def test_where_the_mark_cannot_be_reset_the_record_says_why(
    arm: Arm, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, *_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "write_text", refuse)
    arm.mark(Stage.CACHE_READY)
    reasons = [e.reason for e in arm.events if isinstance(e, HighWaterReset)]
    assert reasons == [message("memory.process_denied")]


def test_memory_that_the_c_library_keeps_is_seen_until_it_is_trimmed(arm: Arm) -> None:
    arm.play("trim")
    before = arm.mark(Stage.LOADED)
    arm.play("keep")
    kept = arm.mark(Stage.CACHE_READY)
    arm.play("trim")
    trimmed = arm.mark(Stage.LAST_STEP)
    few = (pattern_arm.KEPT + 2) * pattern_arm.BLOCK_BYTES
    for channel in (Channel.RSS, Channel.USS, Channel.PSS):
        assert kept[channel] - before[channel] == near(pattern_arm.BELOW_BYTES)
        assert trimmed[channel] - before[channel] == near(few)


class Harm(BaseException):
    """Something that no ``except Exception`` holds."""


def failing(monitor: Monitor) -> Message:
    reason = monitor.failure()
    assert reason is not None
    return reason


def test_samples_that_cannot_be_written_are_counted_and_said(arm: Arm) -> None:
    failures = iter([OSError("disk full")] * 3)
    written: list[Event] = []
    enough = threading.Event()

    def emit(event: Event) -> None:
        for error in failures:
            raise error
        written.append(event)
        enough.set()

    monitor = Monitor("paged", arm.pid, cpu_environment(), emit, 1)
    monitor.start()
    assert enough.wait(10)
    monitor.stop()
    assert failing(monitor) == message("usage.sampler_lost", arm="paged", n=3, error="OSError")


def test_a_sampler_that_dies_is_said_and_stages_are_still_read(
    arm: Arm, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = threading.Event()
    died = threading.Event()
    written: list[Event] = []

    rss = ProcessTree.rss

    def read(self: ProcessTree, *, fresh: bool = False) -> MemoryFigure:
        if broken.is_set() and threading.current_thread().name == "memory-paged":
            died.set()
            raise Harm
        return rss(self, fresh=fresh)

    monkeypatch.setattr(ProcessTree, "rss", read)
    monitor = Monitor("paged", arm.pid, cpu_environment(), written.append, 1)
    monitor.start()
    while not written:
        assert monitor.failure() is None
    broken.set()
    assert died.wait(10)
    count = len(written)
    monitor.mark(Stage.LAST_STEP)
    monitor.stop()
    assert failing(monitor) == message("usage.sampler_ended", arm="paged", error="Harm")
    stages = [e for e in written[count:] if isinstance(e, Reading) and e.stage is Stage.LAST_STEP]
    assert {e.channel for e in stages} >= {Channel.RSS, Channel.USS, Channel.HIGH_WATER}
    assert all(e.bytes for e in stages)
