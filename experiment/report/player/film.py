"""Encode an arm's event log for the player, as changes from frame to frame.

    frames   f0 f1 f2 …              one frame per step, or per several steps
             └ after step 0

A frame has the net changes of one or several steps, so that the state after it is exact. Steps are
grouped by number, equally in all films of a page, so that both sides show the same step. Written
positions are encoded as rates: a request that decodes one token per step needs no data until that
changes. Runs of blocks ``a, a+1 … b`` are encoded as ``a, -b``. Events repeat nothing that follows
from the changes: an allocated block is a new entry that was neither copied nor shared.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from experiment.replay.arm_events import ArmEvents
from experiment.replay.frames import Frame, frame_size, same_entries, touched
from experiment.replay.timeline import replayed
from kvsim.accounting.ledger import Owner
from kvsim.core.step import OpKind, StepPlan

MAX_BYTES = 420_000  # of one arm, unless the page has less space
_MAX_EVENTS = 24  # of a kind in a frame; others are counted
_COUNTED = {
    OpKind.COPY: "copied",
    OpKind.EVICT: "evicted",
    OpKind.MERGE: "merged",
    OpKind.SHARE: "shared",
    OpKind.SWAP_OUT: "swapped",
    OpKind.SWAP_IN: "returned",
}


@dataclass(frozen=True, slots=True)
class Film:
    """The film of one arm; ``every`` steps are one frame."""

    arm: str
    every: int
    steps: int
    data: dict[str, Any]


@dataclass(slots=True)
class _PlayerState:
    """State of a request in the player, which adds ``rate`` to ``written`` at each frame."""

    table: list[int] = field(default_factory=list)
    written: int = 0
    padding: int = 0
    finished: bool = False
    rate: int = 0


def films(arms: Sequence[tuple[ArmEvents, bool]], most_bytes: int = MAX_BYTES) -> list[Film]:
    """Films of the arms with replayable steps, all with the same ``every``; see :func:`film`."""

    def made(every: int) -> list[Film]:
        encoded = (film(events, slab, every, most_bytes) for events, slab in arms)
        return [one for one in encoded if one is not None]

    reel = made(1)
    while reel and any(one.every != (most := max(each.every for each in reel)) for one in reel):
        reel = made(most)
    return reel


def film(arm: ArmEvents, slab: bool, every: int = 1, most_bytes: int = MAX_BYTES) -> Film | None:
    """Encode an arm, with more steps per frame until it is small enough.

    Args:
        slab: blocks are slabs, drawn as rows instead of cells.
        every: minimum number of steps per frame, a power of two.
        most_bytes: maximum size.

    Returns:
        The film; None without a replayable step.
    """
    if arm.pool is None:
        return None
    frames = replayed(arm, frames=True).frames
    if not frames:
        return None
    steps = sum(len(frame.plans) for frame in frames)
    every = max(every, frame_size(len(arm.steps)))
    origin = arm.steps[0].started_ns
    data = _encode(frames, origin, every)
    while every < steps and len(json.dumps(data, separators=(",", ":"))) > most_bytes:
        every *= 2
        data = _encode(frames, origin, every)
    pool = arm.pool
    data |= {
        "arm": arm.arm, "blocks": pool.blocks, "size": pool.block_size, "slab": slab,
        "engine": pool.engine_blocks, "watermark": pool.watermark_blocks,
        "elastic": pool.elastic, "slotBytes": pool.bytes_per_slot, "every": every,
        "steps": steps,
    }  # fmt: skip
    return Film(arm.arm, every, steps, data)


def _encode(frames: Sequence[Frame], origin: int, every: int) -> dict[str, Any]:
    """Encode replayed frames in groups of ``every``; ``origin`` is in ns."""
    holders: dict[int, Owner] = {}
    kept: set[int] = set()
    shown: dict[int, _PlayerState] = {}
    cached: set[int] = set()
    drawn: list[dict[str, Any]] = []
    for _, group in groupby(frames, key=lambda one: one.plans[-1].step // every):
        plans: list[StepPlan] = []
        for one in group:
            one.apply(holders, kept)
            plans += one.plans
        last = plans[-1]
        frame = {"n": last.step, "t": round((one.t_ns - origin) / 1e9, 4)}
        frame |= _changes(holders, shown, touched(plans))
        frame |= _cache_changes(kept, cached)
        frame |= _events(plans)
        if last.waiting:
            frame["q"] = last.waiting
        cached = set(kept)
        drawn.append(frame)
    return {"frames": drawn}


def _changes(
    holders: Mapping[int, Owner], shown: dict[int, _PlayerState], changed: set[int]
) -> dict[str, Any]:
    """Net changes of the owners; updates ``shown``, the state of the player."""
    gone = [request for request in shown if request not in holders]
    for request in gone:
        del shown[request]
    tables = [
        change
        for request in sorted(changed & holders.keys())
        if (change := _table_change(request, holders[request], shown)) is not None
    ]
    rates = []
    for request, holder in holders.items():
        state = shown[request]
        rate = holder.written - state.written
        if rate != state.rate:
            rates.append([request, rate])
        state.rate, state.written = rate, holder.written
    changes = {"g": gone, "h": tables, "w": rates}
    return {name: value for name, value in changes.items() if value}


def _table_change(request: int, holder: Owner, shown: dict[int, _PlayerState]) -> list[Any] | None:
    """[request, kept entries, new entries, padding, finished]; the last two if not 0."""
    state = shown.setdefault(request, _PlayerState())
    new = not state.table
    keep = same_entries(state.table, holder.table)
    same = keep == len(state.table) == len(holder.table)
    if same and (holder.padding, holder.finished) == (state.padding, state.finished) and not new:
        return None
    change: list[Any] = [request, keep, pack(holder.table[keep:])]
    state.table, state.padding = list(holder.table), holder.padding
    state.finished = holder.finished
    if holder.padding or holder.finished:
        change.append(holder.padding)
    if holder.finished:
        change.append(1)
    return change


def _cache_changes(now: set[int], before: set[int]) -> dict[str, Any]:
    changes = (("k", pack(sorted(now - before))), ("u", pack(sorted(before - now))))
    return {name: blocks for name, blocks in changes if blocks}


def _events(plans: Sequence[StepPlan]) -> dict[str, Any]:
    """Events that the changes do not show: counts, and the first of each kind with its ids.

    ``y``: [request, source, copy]; ``e``: evicted blocks; ``m``: [kind, request, new blocks];
    ``f``: [request, reason]; ``p``: [request, by, needed, free, computed], or [request] if the
    cause is unknown; ``a``: [request, reason, needed, free] of one that begins to wait.
    """
    counts: dict[str, int] = {}
    copies: list[list[int]] = []
    evicted: list[int] = []
    moved: list[list[Any]] = []
    preempted = [
        [request, *(plan.causes[i] if plan.causes else ())]
        for plan in plans
        for i, request in enumerate(plan.preempted)
    ]
    for op in (op for plan in plans for op in plan.ops):
        name = _COUNTED.get(op.kind)
        if name is None:
            continue
        counts[name] = counts.get(name, 0) + len(op.blocks)
        if op.kind is OpKind.COPY:
            pairs = zip(op.sources, op.blocks, strict=True)
            copies += [[op.request or 0, old, new] for old, new in pairs]
        elif op.kind is OpKind.EVICT:
            evicted += op.blocks
        else:
            moved.append([name, op.request, pack(op.blocks)])
    if preempted:
        counts["preempted"] = len(preempted)
    events: dict[str, Any] = {
        "c": counts, "y": copies, "e": evicted, "p": preempted, "m": moved,
        "f": [[end.request, end.reason.value] for plan in plans for end in plan.finished],
        "a": [list(plan.wait) for plan in plans if plan.wait],
    }  # fmt: skip
    return {
        name: value if isinstance(value, dict) else value[:_MAX_EVENTS]
        for name, value in events.items()
        if value
    }


def pack(blocks: Sequence[int]) -> list[int]:
    """Shorten runs of three or more block ids: 4, 5, 6, 7 is 4, -7."""
    out: list[int] = []
    start = 0
    while start < len(blocks):
        end = start
        while end + 1 < len(blocks) and blocks[end + 1] == blocks[end] + 1:
            end += 1
        if end - start >= 2:
            out += [blocks[start], -blocks[end]]
        else:
            out += blocks[start : end + 1]
        start = end + 1
    return out
