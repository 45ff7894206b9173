"""The same KV bytes by every channel that can see them, and what the rest of the process is.

For a cache that is reserved in advance each channel is asked how much came with it: shapes
(formula, tensors), a count of its unwritten slots, torch's allocator, the process and the
device. Formula and tensors are both shapes; the others are independent of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from experiment.analysis.process_memory import at, is_on_gpu, memory_parts
from experiment.analysis.results import ChannelFigure, Reconciliation
from experiment.events import Channel, HighWaterReset, Reading, Stage
from experiment.replay.step_rows import StepRow
from experiment.text.messages import Message, message

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
# Torch's CUDA allocator takes memory in pieces of up to so much, each for several tensors.
TORCH_PIECE_BYTES = 20 * 2**20
# A smaller cache drowns in that movement, so those channels do not judge it.
JUDGED_FROM_BYTES = 8 * SLACK_BYTES
# What the verdicts rest on, for every table that shows them.
ALLOWED = message(
    "reconcile.allowed",
    tolerance=max(TOLERANCES.values()), slack=SLACK_BYTES, limit=JUDGED_FROM_BYTES,
    piece=TORCH_PIECE_BYTES,
)  # fmt: skip
# These see what torch's allocator took, of which it may not have handed out everything.
_ABOVE_TORCH = (
    Channel.TORCH_RESERVED,
    Channel.NVML_PROCESS,
    Channel.NVML_DEVICE,
    Channel.CUDA_MEM_GET_INFO,
)
_AT_ONCE = (Channel.TENSORS, Channel.POISON)  # read as they are; the others as a change
# Another process that shares pages moves these as it starts or ends; RSS counts each page whole.
_BY_SHARERS = (Channel.USS, Channel.PSS)
# These count what others hold on the GPU, a desktop's compositor for instance.
_BY_OTHERS = (Channel.NVML_DEVICE, Channel.CUDA_MEM_GET_INFO)
_OF_MAIN_MEMORY = (Channel.RSS, *_BY_SHARERS)


def reconcile(
    readings: Sequence[Reading],
    steps: Sequence[StepRow],
    slot_bytes: int | None,
    reset: HighWaterReset | None = None,
    others: int | None = None,
) -> Reconciliation | None:
    """Compare the channels of one arm; None when its cache was never there.

    Args:
        others: processes on the GPU that are not ours; None: unknown.
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
    inputs = at(readings, Channel.STATIC_INPUTS, Stage.CACHE_READY)  # come with some caches
    for channel, ready in _asked(readings).items():
        size, reason = ready.bytes, ready.reason
        if channel not in _AT_ONCE:
            before = at(readings, channel, Stage.LOADED)
            size = _minus(size, before.bytes if before else None)
            size = _minus(size, inputs.bytes) if inputs else size
            reason = reason or (before.reason if before else None)
        slack = held if channel in _ABOVE_TORCH else 0
        rows.append(_row(channel, size, expected, reason, slack))
    if others != 0:
        rows = [_unjudged(row, _BY_OTHERS, "reconcile.others") for row in rows]
    if any(row.channel == Channel.RSS and row.agrees for row in rows):
        rows = [_unjudged(row, _BY_SHARERS, "reconcile.sharers") for row in rows]
    return rows


def _asked(readings: Sequence[Reading]) -> dict[Channel, Reading]:
    """What each channel showed of the finished cache; those of main memory see none on a GPU."""
    unseen = _OF_MAIN_MEMORY if is_on_gpu(readings) else ()
    found = {c: at(readings, c, Stage.CACHE_READY) for c in TOLERANCES if c not in unseen}
    return {channel: ready for channel, ready in found.items() if ready is not None}


def _unjudged(row: ChannelFigure, channels: Sequence[Channel], why: str) -> ChannelFigure:
    """Do not judge a difference of channels that other processes may have moved."""
    if row.channel not in channels or row.agrees is not False:
        return row
    return row.model_copy(update={"agrees": None, "reason": message(why)})


def _allocator_growth(readings: Sequence[Reading]) -> int:
    """Bytes by which what torch holds without handing it out changed with the cache."""
    changes = []
    for channel in (Channel.TORCH_RESERVED, Channel.TORCH_ALLOCATED):
        ready, loaded = (at(readings, channel, s) for s in (Stage.CACHE_READY, Stage.LOADED))
        if ready is None or loaded is None or ready.bytes is None or loaded.bytes is None:
            return 0
        changes.append(ready.bytes - loaded.bytes)
    return abs(changes[0] - changes[1])


def _largest_grown(
    readings: Sequence[Reading], steps: Sequence[StepRow], slot_bytes: int | None
) -> int | None:
    """The formula at the largest, over the steps up to the last look at the tensors."""
    looked = [r.t_ns for r in readings if r.channel is Channel.TENSORS and r.bytes is not None]
    sizes = [row.allocated for row in steps if looked and row.t_ns <= max(looked)]
    return round(max(sizes) * slot_bytes) if sizes and slot_bytes else None


def _grown_rows(readings: Sequence[Reading], expected: int | None) -> list[ChannelFigure]:
    """A cache that grows: the most its tensors held; no single allocation to look at."""
    sizes = [r.bytes for r in readings if r.channel is Channel.TENSORS and r.bytes is not None]
    others = [one for channel, one in _asked(readings).items() if channel is not Channel.TENSORS]
    return [
        _row(Channel.TENSORS, max(sizes, default=None), expected, None),
        *(_row(one.channel, None, expected, _why_not_grown(one)) for one in others),
    ]


def _why_not_grown(ready: Reading) -> Message:
    """The channel's own reason where it sees nothing on this machine, whatever the cache does."""
    own = ready.reason if ready.bytes is None else None
    return own or message("memory.nothing_reserved")


def _row(
    channel: Channel, size: int | None, expected: int | None, reason: Message | None, slack: int = 0
) -> ChannelFigure:
    """``slack``: bytes that the allocator below this channel is known to have moved besides."""
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
    """Bytes by which a channel may be off; None where that would be most of the cache."""
    if channel in _AT_ONCE:
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


def _minus(larger: int | None, smaller: int | None) -> int | None:
    return None if larger is None or smaller is None else larger - smaller
