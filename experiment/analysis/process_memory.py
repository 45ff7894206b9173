"""Parts of the memory of an arm's process. Pure functions.

    tensors              weights
    CPU    RSS of the tree    runtime │ first-forward overhead │ KV │ activations │ left
    GPU    torch's allocator            first-forward overhead │ KV │ inputs │ activations │ left
           NVML over the tree runtime and context: not from torch's allocator

Freed memory that an allocator keeps (slack) is included in the other parts and also shown alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from experiment.analysis.results import MemoryPart, PartName
from experiment.events import Channel, HighWaterReset, Reading, Stage
from experiment.text.messages import Message, message


class Size(NamedTuple):
    """Bytes by a channel, or the reason why they are unknown."""

    channel: Channel
    bytes: int | None
    reason: Message | None = None

    def minus(self, other: Size) -> Size:
        """Difference with the channel of ``self``; None if either is None."""
        if self.bytes is None or other.bytes is None:
            return Size(self.channel, None, self.reason or other.reason)
        return Size(self.channel, self.bytes - other.bytes)


def memory_parts(
    readings: Sequence[Reading], reset: HighWaterReset | None = None, reserved: bool = True
) -> list[MemoryPart]:
    """Parts of the process's memory, in bytes; empty if no cache was created.

    Args:
        reset: reset of the high-water mark, or the reason why there was none.
        reserved: whether the cache was reserved in one piece, so that it can be measured.
    """
    if is_on_gpu(readings):
        parts = _on_gpu(readings)
    elif at(readings, Channel.RSS, Stage.CACHE_READY) is not None:
        parts = _on_host(readings, reset)
    else:
        return []
    if not reserved:
        reason = message("memory.nothing_reserved")
        parts["kv"] = Size(parts["kv"].channel, None, reason)
    parts["slack"] = read(readings, Channel.ALLOCATOR_SLACK, Stage.LAST_STEP)
    return [
        MemoryPart(part=name, channel=size.channel.value, bytes=size.bytes, reason=size.reason)
        for name, size in parts.items()
    ]


def _on_host(readings: Sequence[Reading], reset: HighWaterReset | None) -> dict[PartName, Size]:
    start, loaded, ready, released = (
        read(readings, Channel.RSS, stage)
        for stage in (Stage.START, Stage.LOADED, Stage.CACHE_READY, Stage.RELEASED)
    )
    weights = read(readings, Channel.WEIGHTS, Stage.LOADED)
    return {
        "runtime": start,
        "weights": weights,
        "started": loaded.minus(start).minus(weights),
        "kv": ready.minus(loaded),
        "work": _largest_since_ready(readings, reset).minus(ready),
        "left": released.minus(start),
    }


def _on_gpu(readings: Sequence[Reading]) -> dict[PartName, Size]:
    loaded, ready = (
        read(readings, Channel.TORCH_ALLOCATED, stage)
        for stage in (Stage.LOADED, Stage.CACHE_READY)
    )
    weights = read(readings, Channel.WEIGHTS, Stage.LOADED)
    process = read(readings, Channel.NVML_PROCESS, Stage.CACHE_READY)
    cache, inputs = ready.minus(loaded), at(readings, Channel.STATIC_INPUTS, Stage.CACHE_READY)
    static: dict[PartName, Size] = {}
    if inputs is not None:
        static["inputs"] = Size(inputs.channel, inputs.bytes)
        cache = cache.minus(static["inputs"])
    return {
        "runtime": process.minus(read(readings, Channel.TORCH_RESERVED, Stage.CACHE_READY)),
        "weights": weights,
        "started": loaded.minus(weights),
        "kv": cache,
        **static,
        "work": read(readings, Channel.TORCH_ALLOCATED_PEAK, Stage.LAST_STEP).minus(ready),
        # NVML would include the context, which stays as long as the process.
        "left": read(readings, Channel.TORCH_ALLOCATED, Stage.RELEASED),
    }


def _largest_since_ready(readings: Sequence[Reading], reset: HighWaterReset | None) -> Size:
    """Maximum resident memory after the cache was created, because loading has its own peaks.

    Samples cover the whole tree at some moments, the high-water mark the main process at all
    moments. Both are lower bounds, so the larger one is used.
    """
    ready = at(readings, Channel.RSS, Stage.CACHE_READY)
    assert ready is not None
    since = {Channel.RSS: ready.t_ns}
    if reset is not None and reset.reason is None:
        since[Channel.HIGH_WATER] = reset.t_ns + 1
    sizes = [
        Size(r.channel, r.bytes)
        for r in readings
        if r.channel in since and r.bytes is not None and r.t_ns >= since[r.channel]
        and not (r.channel is Channel.HIGH_WATER and r.stage is Stage.RELEASED)
    ]  # fmt: skip
    return max(sizes, key=lambda size: size.bytes or 0, default=Size(Channel.RSS, None))


def read(readings: Iterable[Reading], channel: Channel, stage: Stage) -> Size:
    """A channel's first reading at a stage; unknown without a reason if there is none."""
    reading = at(readings, channel, stage)
    return Size(channel, reading.bytes if reading else None, reading.reason if reading else None)


def is_on_gpu(readings: Iterable[Reading]) -> bool:
    """Whether an arm with a cache ran on a GPU: then the log has a reading of NVML."""
    return at(readings, Channel.NVML_PROCESS, Stage.CACHE_READY) is not None


def at(readings: Iterable[Reading], channel: Channel, stage: Stage) -> Reading | None:
    """First reading of a channel at a stage; None: there is none."""
    return next((r for r in readings if r.channel is channel and r.stage is stage), None)
