"""The most that an arm's processes held, and how much a figure moved while the arm ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from experiment.events import Baseline, Channel, HighWaterReset, Reading, Scope, Stage, Step
from experiment.machine.environment import Environment

# The process's own memory, best first. Torch's allocator is read at stages alone.
_PROCESS = (Channel.NVML_PROCESS, Channel.RSS)
_FEWEST = 2


@dataclass(frozen=True, slots=True)
class ProcessPeaks:
    """The most that an arm's processes held, bytes of one channel; None: not read.

    ``working`` is from the moment on at which the cache was there, ``loading`` up to it: what
    comes and goes while weights are brought into place is no need of what follows.
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
    """By the main channel of the run alone: bytes of a GPU and of main memory are no row.

    On a CPU samples count every process at their moments, and the high-water mark the main one at
    all moments; neither can be more than there was. Where ``reset`` does not say that the mark
    began anew with the cache, it is one of loading too, and only samples tell of what follows.

    A channel of the whole device counts from ``baseline``, what was on it before the arm; without
    one it tells nothing of the arm.
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
    if not ready:  # it never came to a cache
        return ProcessPeaks(None, _most(some, before), primary if some else None)
    anew = reset is not None and reset.reason is None
    working = [
        r
        for r in some
        if (r.t_ns > max(ready) and (r.channel is primary or anew))
        or (r.stage is Stage.CACHE_READY and r.channel is primary)
    ]
    loading = [r for r in some if r.t_ns <= max(ready)]
    most, loaded = _most(working, before), _most(loading, before)
    return ProcessPeaks(most, loaded, primary if some else None)


def _most(readings: Sequence[Reading], before: int) -> int | None:
    return max((r.bytes - before for r in readings if r.bytes is not None), default=None)


def variation(values: Sequence[float]) -> float | None:
    """(largest - smallest) / largest; None where there is nothing but zeros to compare."""
    if not values or not max(values):
        return None
    return (max(values) - min(values)) / max(values)


def process_variation(
    readings: Sequence[Reading], steps: Sequence[Step]
) -> tuple[float | None, Channel | None]:
    """Of the process over the steps that ran and the requests that ended, and by which channel."""
    for channel in _PROCESS:
        sizes = [
            reading.bytes
            for reading in readings
            if reading.channel is channel
            and reading.bytes is not None
            and (reading.stage is Stage.REQUEST_DONE or _while_running(reading, steps))
        ]
        if len(sizes) >= _FEWEST:
            return variation(sizes), channel
    return None, None


def _while_running(reading: Reading, steps: Sequence[Step]) -> bool:
    if not steps or reading.stage is not None:
        return False
    return steps[0].started_ns <= reading.t_ns <= steps[-1].t_ns
