"""What the memory of an arm's process consists of, beside its KV cache. Pure functions.

    tensors              weights
    CPU    RSS of the tree    runtime │ what a first token starts │ KV │ activations │ left
    GPU    torch's allocator            what a first token starts │ KV │ inputs │ activations │ left
           NVML over the tree runtime and context: what torch did not ask for

What an allocator keeps although it was freed lies inside the others and is told apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from experiment.analysis.results import MemoryPart, PartName
from experiment.events import Channel, HighWaterReset, Reading, Stage
from experiment.text.messages import Message, message


class _Size(NamedTuple):
    """Bytes by a channel, or why there are none."""

    channel: Channel
    bytes: int | None
    reason: Message | None = None

    def minus(self, other: _Size) -> _Size:
        """The difference, in the name of the first channel; None if either is."""
        if self.bytes is None or other.bytes is None:
            return _Size(self.channel, None, self.reason or other.reason)
        return _Size(self.channel, self.bytes - other.bytes)


def memory_parts(
    readings: Sequence[Reading], reset: HighWaterReset | None = None, reserved: bool = True
) -> list[MemoryPart]:
    """The parts by the channels that see them on this device; none where nothing was loaded.

    Args:
        reset: the event that says since when the high-water mark counts, or why it does not.
        reserved: the cache was reserved in one go, so that it can be told apart.
    """
    if is_on_gpu(readings):
        parts = _on_gpu(readings)
    elif at(readings, Channel.RSS, Stage.CACHE_READY) is not None:
        parts = _on_host(readings, reset)
    else:
        return []
    if not reserved:
        reason = message("memory.nothing_reserved")
        parts["kv"] = _Size(parts["kv"].channel, None, reason)
    parts["slack"] = _read(readings, Channel.ALLOCATOR_SLACK, Stage.LAST_STEP)
    return [
        MemoryPart(part=name, channel=size.channel.value, bytes=size.bytes, reason=size.reason)
        for name, size in parts.items()
    ]


def _on_host(readings: Sequence[Reading], reset: HighWaterReset | None) -> dict[PartName, _Size]:
    start, loaded, ready, released = (
        _read(readings, Channel.RSS, stage)
        for stage in (Stage.START, Stage.LOADED, Stage.CACHE_READY, Stage.RELEASED)
    )
    weights = _read(readings, Channel.WEIGHTS, Stage.LOADED)
    return {
        "runtime": start,
        "weights": weights,
        "started": loaded.minus(start).minus(weights),
        "kv": ready.minus(loaded),
        "work": _largest_since_ready(readings, reset).minus(ready),
        "left": released.minus(start),
    }


def _on_gpu(readings: Sequence[Reading]) -> dict[PartName, _Size]:
    loaded, ready = (
        _read(readings, Channel.TORCH_ALLOCATED, stage)
        for stage in (Stage.LOADED, Stage.CACHE_READY)
    )
    weights = _read(readings, Channel.WEIGHTS, Stage.LOADED)
    process = _read(readings, Channel.NVML_PROCESS, Stage.CACHE_READY)
    cache, inputs = ready.minus(loaded), at(readings, Channel.STATIC_INPUTS, Stage.CACHE_READY)
    beside: dict[PartName, _Size] = {}
    if inputs is not None:
        beside["inputs"] = _Size(inputs.channel, inputs.bytes)
        cache = cache.minus(beside["inputs"])
    return {
        "runtime": process.minus(_read(readings, Channel.TORCH_RESERVED, Stage.CACHE_READY)),
        "weights": weights,
        "started": loaded.minus(weights),
        "kv": cache,
        **beside,
        "work": _read(readings, Channel.TORCH_ALLOCATED_PEAK, Stage.LAST_STEP).minus(ready),
        # NVML would show the context again, which stays as long as the process.
        "left": _read(readings, Channel.TORCH_ALLOCATED, Stage.RELEASED),
    }


def _largest_since_ready(readings: Sequence[Reading], reset: HighWaterReset | None) -> _Size:
    """The most that was resident once the cache was there: loading has spikes of its own.

    Samples see the whole tree at their moments, the high-water mark the main process at all
    moments: neither can be more than there was, so the larger one holds.
    """
    ready = at(readings, Channel.RSS, Stage.CACHE_READY)
    assert ready is not None
    channels = [Channel.RSS]
    if reset is not None and reset.reason is None:
        channels.append(Channel.HIGH_WATER)
    found = [
        _Size(r.channel, r.bytes)
        for r in readings
        if r.channel in channels
        and r.bytes is not None
        and (r.t_ns >= ready.t_ns if r.channel is Channel.RSS else _after(r, reset))
    ]
    return max(found, key=lambda size: size.bytes or 0, default=_Size(Channel.RSS, None))


def _after(reading: Reading, reset: HighWaterReset | None) -> bool:
    return reset is not None and reading.t_ns > reset.t_ns and reading.stage is not Stage.RELEASED


def _read(readings: Iterable[Reading], channel: Channel, stage: Stage) -> _Size:
    reading = at(readings, channel, stage)
    return _Size(channel, reading.bytes if reading else None, reading.reason if reading else None)


def is_on_gpu(readings: Iterable[Reading]) -> bool:
    """Whether an arm that came to its cache ran on a GPU: NVML was asked then, or has a reason."""
    return at(readings, Channel.NVML_PROCESS, Stage.CACHE_READY) is not None


def at(readings: Iterable[Reading], channel: Channel, stage: Stage) -> Reading | None:
    """The first reading of a channel at a stage."""
    return next((r for r in readings if r.channel is channel and r.stage is stage), None)
