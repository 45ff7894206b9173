"""Compare the KV bytes of an arm by all channels.

For a preallocated cache, each channel gives its size or the increase that it caused: formula and
tensors (both shapes), the count of unwritten slots, torch's allocator, the process and the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from experiment.analysis.process_memory import at, is_on_gpu, memory_parts, read
from experiment.analysis.results import ChannelFigure, Reconciliation
from experiment.events import Channel, HighWaterReset, Reading, Stage
from experiment.replay.step_rows import StepRow
from experiment.text.messages import Message, message

# Tolerance of each channel relative to the formula. Shapes and counts must be exact.
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
# Unrelated changes by allocators and the C library.
SLACK_BYTES = 4 * 2**20
# Maximum segment of torch's CUDA allocator, shared by several tensors.
TORCH_PIECE_BYTES = 20 * 2**20
# A smaller cache is not judged: unrelated changes are too large a part of it.
JUDGED_FROM_BYTES = 8 * SLACK_BYTES
# Note on tolerances for every table with verdicts.
ALLOWED = message(
    "reconcile.allowed",
    tolerance=max(TOLERANCES.values()), slack=SLACK_BYTES, limit=JUDGED_FROM_BYTES,
    piece=TORCH_PIECE_BYTES,
)  # fmt: skip
# Include memory that torch's allocator has reserved but not allocated.
_ABOVE_TORCH = (
    Channel.TORCH_RESERVED,
    Channel.NVML_PROCESS,
    Channel.NVML_DEVICE,
    Channel.CUDA_MEM_GET_INFO,
)
_ABSOLUTE = (Channel.TENSORS, Channel.POISON)  # sizes; the other channels give changes
# Change when a process that shares pages starts or ends; RSS counts each page fully.
_AFFECTED_BY_SHARERS = (Channel.USS, Channel.PSS)
# Include GPU memory of other processes, such as a desktop's compositor.
_AFFECTED_BY_OTHERS = (Channel.NVML_DEVICE, Channel.CUDA_MEM_GET_INFO)
_OF_MAIN_MEMORY = (Channel.RSS, *_AFFECTED_BY_SHARERS)


def reconcile(
    readings: Sequence[Reading],
    steps: Sequence[StepRow],
    slot_bytes: int | None,
    reset: HighWaterReset | None = None,
    others: int | None = None,
) -> Reconciliation | None:
    """Compare the channels of one arm; None if no cache was created.

    Args:
        others: number of foreign processes on the GPU; None: unknown.
    """
    if not any(reading.stage is Stage.CACHE_READY for reading in readings):
        return None
    expected = at(readings, Channel.FORMULA, Stage.CACHE_READY)
    total = expected.bytes if expected else None
    reserved = total is not None
    if total is not None:
        rows = _reserved_rows(readings, total, others)
    else:
        total = _largest_grown(readings, steps, slot_bytes)
        rows = _grown_rows(readings, total)
    return Reconciliation(
        expected_bytes=total,
        reserved=reserved,
        rows=rows,
        agree=_agree(rows),
        text=_sentence(rows),
        parts=memory_parts(readings, reset, reserved),
    )


def _reserved_rows(
    readings: Sequence[Reading], expected: int, others: int | None
) -> list[ChannelFigure]:
    rows = []
    held = _allocator_growth(readings)
    inputs = read(readings, Channel.STATIC_INPUTS, Stage.CACHE_READY)
    has_inputs = at(readings, Channel.STATIC_INPUTS, Stage.CACHE_READY) is not None
    for channel in _ready_readings(readings):
        size = read(readings, channel, Stage.CACHE_READY)
        if channel not in _ABSOLUTE:
            size = size.minus(read(readings, channel, Stage.LOADED))
            size = size.minus(inputs) if has_inputs else size
        slack = held if channel in _ABOVE_TORCH else 0
        rows.append(_row(channel, size.bytes, expected, size.reason, slack))
    if others != 0:
        rows = [_unjudged(row, _AFFECTED_BY_OTHERS, "reconcile.others") for row in rows]
    if any(row.channel == Channel.RSS and row.agrees for row in rows):
        rows = [_unjudged(row, _AFFECTED_BY_SHARERS, "reconcile.sharers") for row in rows]
    return rows


def _ready_readings(readings: Sequence[Reading]) -> dict[Channel, Reading]:
    """Reading of each channel with the cache created, without main memory for a cache on a GPU."""
    excluded = _OF_MAIN_MEMORY if is_on_gpu(readings) else ()
    ready = {c: at(readings, c, Stage.CACHE_READY) for c in TOLERANCES if c not in excluded}
    return {channel: reading for channel, reading in ready.items() if reading is not None}


def _unjudged(row: ChannelFigure, channels: Sequence[Channel], why: str) -> ChannelFigure:
    """Withdraw a negative verdict on channels that other processes may have changed."""
    if row.channel not in channels or row.agrees is not False:
        return row
    return row.model_copy(update={"agrees": None, "reason": message(why)})


def _allocator_growth(readings: Sequence[Reading]) -> int:
    """Change of torch's reserved but not allocated bytes with the cache."""
    reserved, allocated = (
        read(readings, channel, Stage.CACHE_READY).minus(read(readings, channel, Stage.LOADED))
        for channel in (Channel.TORCH_RESERVED, Channel.TORCH_ALLOCATED)
    )
    return abs(reserved.minus(allocated).bytes or 0)


def _largest_grown(
    readings: Sequence[Reading], steps: Sequence[StepRow], slot_bytes: int | None
) -> int | None:
    """Maximum of the formula over the steps up to the last reading of the tensors."""
    read_ns = [r.t_ns for r in readings if r.channel is Channel.TENSORS and r.bytes is not None]
    sizes = [row.allocated for row in steps if read_ns and row.t_ns <= max(read_ns)]
    return round(max(sizes) * slot_bytes) if sizes and slot_bytes else None


def _grown_rows(readings: Sequence[Reading], expected: int | None) -> list[ChannelFigure]:
    """Rows of a growing cache: the maximum of its tensors; other channels cannot separate it."""
    sizes = [r.bytes for r in readings if r.channel is Channel.TENSORS and r.bytes is not None]
    others = [
        one for channel, one in _ready_readings(readings).items() if channel is not Channel.TENSORS
    ]
    return [
        _row(Channel.TENSORS, max(sizes, default=None), expected, None),
        *(_row(one.channel, None, expected, _reason_not_grown(one)) for one in others),
    ]


def _reason_not_grown(ready: Reading) -> Message:
    """The channel's own reason if it is unavailable on this machine."""
    own = ready.reason if ready.bytes is None else None
    return own or message("memory.nothing_reserved")


def _row(
    channel: Channel, size: int | None, expected: int | None, reason: Message | None, slack: int = 0
) -> ChannelFigure:
    """One row; ``slack``: additional bytes that the allocator is known to have reserved."""
    difference = agrees = allowed = None
    if size is not None and expected:
        difference = size / expected - 1
        allowed = _allowed(channel, expected)
        if allowed is None:
            reason = message("reconcile.too_small", limit=JUDGED_FROM_BYTES)
        else:
            allowed += min(slack, TORCH_PIECE_BYTES)
            agrees = abs(size - expected) <= allowed
    return ChannelFigure(
        channel=channel.value,
        bytes=size,
        reason=reason,
        difference=difference,
        agrees=agrees,
        allowed_bytes=allowed,
    )


def _allowed(channel: Channel, expected: int) -> int | None:
    """Tolerated difference of a channel in bytes; None if the cache is too small to be judged."""
    if channel in _ABSOLUTE:
        return 0
    if expected < JUDGED_FROM_BYTES:
        return None
    return max(round(TOLERANCES[channel] * expected), SLACK_BYTES)


def _agree(rows: Iterable[ChannelFigure]) -> bool | None:
    verdicts = [row.agrees for row in rows if row.agrees is not None]
    return all(verdicts) if verdicts else None


def _sentence(rows: Sequence[ChannelFigure]) -> Message:
    judged = [row for row in rows if row.agrees is not None and row.difference is not None]
    if not judged:
        return message("reconcile.unknown")
    wrong = [row for row in judged if not row.agrees]
    worst = max(wrong or judged, key=lambda row: abs(row.difference or 0))
    about = {
        "channel": message(f"channel.{worst.channel}").model_dump(),
        "off": worst.difference,
        "allowed": worst.allowed_bytes,
    }
    if wrong:
        return message("reconcile.differ", **about)
    if len(judged) == 1:
        return message("reconcile.alone", **about)
    if any(row.bytes is not None and row.allowed_bytes is None for row in rows):
        return message("reconcile.agree_small", n=len(judged), limit=JUDGED_FROM_BYTES)
    return message("reconcile.agree", n=len(judged), **about)
