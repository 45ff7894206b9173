"""How much a figure of an arm moved while it ran: (largest - smallest) / largest."""

from __future__ import annotations

from collections.abc import Sequence

from experiment.events import Channel, Reading, Stage, Step

# The process's own memory, best first. Torch's allocator is read at stages alone.
_PROCESS = (Channel.NVML_PROCESS, Channel.RSS)
_FEWEST = 2


def variation(values: Sequence[float]) -> float | None:
    """None where there is nothing, or nothing but zeros, to compare."""
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
