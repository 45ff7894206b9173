"""The same KV bytes by every channel that can see them, and what the rest of the process is.

For a cache that is reserved in advance each channel is asked how much came with it: shapes
(formula, tensors), a count of its unwritten slots, torch's allocator, the process and the
device. Formula and tensors are both shapes; the others are independent of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from experiment.events import Channel, Reading, Stage
from experiment.messages import Message, message
from experiment.results import ChannelFigure, MemoryPart, Reconciliation, StepRow

# Relative tolerance of each channel against the formula. Shapes and counts must be exact.
TOLERANCES: dict[Channel, float] = {
    Channel.TENSORS: 0.0,
    Channel.POISON: 0.0,
    Channel.TORCH_ALLOCATED: 0.02,
    Channel.TORCH_RESERVED: 0.02,
    Channel.NVML_PROCESS: 0.02,
    Channel.NVML_DEVICE: 0.02,
    Channel.CUDA_MEM_GET_INFO: 0.02,
    Channel.RSS: 0.02,
    Channel.USS: 0.02,
    Channel.PSS: 0.02,
}
# Allocators and the C library move this much for reasons of their own: less is not judged.
SLACK_BYTES = 4 * 2**20
# A smaller cache drowns in that movement, so those channels do not judge it.
JUDGED_FROM_BYTES = 8 * SLACK_BYTES
_AT_ONCE = (Channel.TENSORS, Channel.POISON)  # read as they are; the others as a change
_PROCESS = (Channel.NVML_PROCESS, Channel.TORCH_RESERVED, Channel.RSS)


def reconcile(
    readings: Sequence[Reading], peak: StepRow | None, slot_bytes: int | None
) -> Reconciliation | None:
    """Compare the channels of one arm; None when its cache was never there."""
    if not any(reading.stage is Stage.CACHE_READY for reading in readings):
        return None
    expected = _at(readings, Channel.FORMULA, Stage.CACHE_READY)
    total = expected.bytes if expected else None
    if total is not None:
        rows = _reserved_rows(readings, total)
    else:
        total = round(peak.allocated * slot_bytes) if peak and slot_bytes else None
        rows = _grown_rows(readings, total)
    return Reconciliation(
        expected_bytes=total,
        rows=rows,
        agree=_agree(rows),
        text=_sentence(rows),
        parts=memory_parts(readings, reserved=expected is not None and expected.bytes is not None),
    )


def memory_parts(readings: Sequence[Reading], reserved: bool = True) -> list[MemoryPart]:
    """What the process's memory consists of, by the best process channel that has figures.

    ``reserved`` is whether the cache was reserved in one go, so that it can be told apart.
    """
    for channel in _PROCESS:
        start = _bytes(readings, channel, Stage.START)
        loaded = _bytes(readings, channel, Stage.LOADED)
        ready = _bytes(readings, channel, Stage.CACHE_READY)
        if loaded is None or ready is None:
            continue
        largest = _largest_since_ready(readings, channel)
        released = _bytes(readings, channel, Stage.RELEASED)
        parts = {
            "runtime": start,
            "weights": _minus(loaded, start),
            "kv": _minus(ready, loaded) if reserved else None,
            "work": _minus(largest, ready),
            "left": _minus(released, start),
        }
        return [MemoryPart(part=p, channel=channel.value, bytes=b) for p, b in parts.items()]
    return []


def _largest_since_ready(readings: Sequence[Reading], channel: Channel) -> int | None:
    """Largest figure once the cache was there: loading has spikes of its own."""
    ready = _at(readings, channel, Stage.CACHE_READY)
    if ready is None:
        return None
    sizes = [r.bytes for r in readings if r.channel is channel and r.t_ns >= ready.t_ns]
    return max((size for size in sizes if size is not None), default=None)


def _reserved_rows(readings: Sequence[Reading], expected: int) -> list[ChannelFigure]:
    rows = []
    for channel in TOLERANCES:
        ready = _at(readings, channel, Stage.CACHE_READY)
        if ready is None:
            continue  # the channel has nothing to do with this device
        size, reason = ready.bytes, ready.reason
        if channel not in _AT_ONCE:
            before = _at(readings, channel, Stage.LOADED)
            size = _minus(size, before.bytes if before else None)
            reason = reason or (before.reason if before else None)
        rows.append(_row(channel, size, expected, reason))
    return rows


def _grown_rows(readings: Sequence[Reading], expected: int | None) -> list[ChannelFigure]:
    """A cache that grows: the most its tensors held; no single allocation to look at."""
    sizes = [r.bytes for r in readings if r.channel is Channel.TENSORS and r.bytes is not None]
    reason = message("memory.nothing_reserved")
    others = [c for c in TOLERANCES if c is not Channel.TENSORS]
    return [
        _row(Channel.TENSORS, max(sizes, default=None), expected, None),
        *(_row(c, None, expected, reason) for c in others if _at(readings, c, Stage.CACHE_READY)),
    ]


def _row(
    channel: Channel, size: int | None, expected: int | None, reason: Message | None
) -> ChannelFigure:
    difference = agrees = None
    if size is not None and expected:
        off = size - expected
        difference = off / expected
        if channel in _AT_ONCE:
            agrees = off == 0
        elif expected >= JUDGED_FROM_BYTES:
            agrees = abs(off) <= max(TOLERANCES[channel] * expected, SLACK_BYTES)
        else:
            reason = message("reconcile.too_small", limit=JUDGED_FROM_BYTES)
    return ChannelFigure(
        channel=channel.value,
        bytes=size,
        reason=reason,
        difference=difference,
        agrees=agrees,
        independent=channel is not Channel.TENSORS,
    )


def _agree(rows: Iterable[ChannelFigure]) -> bool | None:
    verdicts = [row.agrees for row in rows if row.agrees is not None]
    return all(verdicts) if verdicts else None


def _sentence(rows: Sequence[ChannelFigure]) -> Message:
    judged = [row for row in rows if row.agrees is not None and row.difference is not None]
    if not judged:
        return message("reconcile.unknown")
    wrong = [row for row in judged if not row.agrees]
    worst = max(wrong or judged, key=lambda row: abs(row.difference or 0))
    channel = message(f"channel.{worst.channel}").model_dump()
    if wrong:
        return message("reconcile.differ", channel=channel, off=worst.difference)
    if len(judged) == 1:
        return message("reconcile.alone", off=worst.difference, channel=channel)
    return message("reconcile.agree", n=len(judged), off=worst.difference, channel=channel)


def _at(readings: Iterable[Reading], channel: Channel, stage: Stage) -> Reading | None:
    return next((r for r in readings if r.channel is channel and r.stage is stage), None)


def _bytes(readings: Iterable[Reading], channel: Channel, stage: Stage) -> int | None:
    reading = _at(readings, channel, stage)
    return reading.bytes if reading else None


def _minus(larger: int | None, smaller: int | None) -> int | None:
    return None if larger is None or smaller is None else larger - smaller
