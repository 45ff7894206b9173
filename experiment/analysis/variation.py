"""Peak memory of an arm's processes, and variation of a figure while the arm ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from experiment.events import Baseline, Channel, HighWaterReset, Reading, Scope, Stage, Step
from experiment.machine.environment import Environment

# Channels of process memory, best first. Torch's allocator is read at stages only.
_PROCESS = (Channel.NVML_PROCESS, Channel.RSS)
_MIN_SAMPLES = 2


@dataclass(frozen=True, slots=True)
class ProcessPeaks:
    """Peak memory of an arm's processes, in bytes of one channel; None: not read.

    ``loading`` is the peak until the cache was created, ``working`` the peak from then on. Loading
    weights needs temporary memory that is not needed later.
    """

    working: int | None
    loading: int | None
    channel: Channel | None


def largest_process(
    readings: Sequence[Reading],
    machine: Environment | None,
    reset: HighWaterReset | None = None,
    baseline: Baseline | None = None,
) -> ProcessPeaks:
    """Peaks by the main channel of the run.

    On a CPU samples cover all processes at some moments, the high-water mark the main process at
    all moments; both are lower bounds. Without a ``reset`` when the cache was created, the mark
    includes loading and only samples are used for ``working``.

    A channel of the whole device is relative to ``baseline``, the memory before the arm; without a
    baseline the peaks are unknown.
    """
    primary = machine.primary.channel if machine else Channel.RSS
    before = 0
    if machine is not None and machine.primary.scope is Scope.DEVICE:
        if baseline is None or baseline.bytes is None or baseline.channel is not primary:
            return ProcessPeaks(None, None, None)
        before = baseline.bytes
    channels = (primary, Channel.HIGH_WATER) if primary is Channel.RSS else (primary,)
    some = [r for r in readings if r.channel in channels and r.bytes is not None]
    ready = [r.t_ns for r in readings if r.stage is Stage.CACHE_READY and r.channel in channels]
    if not ready:  # no cache was created
        return ProcessPeaks(None, _most(some, before), primary if some else None)
    was_reset = reset is not None and reset.reason is None
    working = [
        r
        for r in some
        if (r.t_ns > max(ready) and (r.channel is primary or was_reset))
        or (r.stage is Stage.CACHE_READY and r.channel is primary)
    ]
    loading = [r for r in some if r.t_ns <= max(ready)]
    most, loaded = _most(working, before), _most(loading, before)
    return ProcessPeaks(most, loaded, primary if some else None)


def _most(readings: Sequence[Reading], before: int) -> int | None:
    return max((r.bytes - before for r in readings if r.bytes is not None), default=None)


def variation(values: Sequence[float]) -> float | None:
    """(largest - smallest) / largest; None without a nonzero value."""
    if not values or not max(values):
        return None
    return (max(values) - min(values)) / max(values)


def process_variation(
    readings: Sequence[Reading], steps: Sequence[Step]
) -> tuple[float | None, Channel | None]:
    """Variation of process memory over steps and ends of requests, and its channel."""
    for channel in _PROCESS:
        sizes = [
            reading.bytes
            for reading in readings
            if reading.channel is channel
            and reading.bytes is not None
            and (reading.stage is Stage.REQUEST_DONE or _while_running(reading, steps))
        ]
        if len(sizes) >= _MIN_SAMPLES:
            return variation(sizes), channel
    return None, None


def _while_running(reading: Reading, steps: Sequence[Step]) -> bool:
    if not steps or reading.stage is not None:
        return False
    return steps[0].started_ns <= reading.t_ns <= steps[-1].t_ns
