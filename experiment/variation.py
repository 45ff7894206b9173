"""The most that an arm's processes held, and how much a figure moved while the arm ran."""

from __future__ import annotations

from collections.abc import Sequence

from experiment.environment import Environment
from experiment.events import Channel, Reading, Stage, Step

# The process's own memory, best first. Torch's allocator is read at stages alone.
_PROCESS = (Channel.NVML_PROCESS, Channel.RSS)
_FEWEST = 2


def largest_process(
    readings: Sequence[Reading], machine: Environment | None
) -> tuple[int | None, Channel | None]:
    """By the main channel of the run alone: bytes of a GPU and of main memory are no row.

    On a CPU samples count every process at their moments, and the high-water mark the main one at
    all moments; neither can be more than there was.
    """
    primary = machine.primary.channel if machine else Channel.RSS
    channels = (primary, Channel.HIGH_WATER) if primary is Channel.RSS else (primary,)
    sizes = [r.bytes for r in readings if r.channel in channels and r.bytes is not None]
    return (max(sizes), primary) if sizes else (None, None)


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
