"""What the log says of the moments that the player shows, for the key paths of its numbers.

    moments[paged][12]        after step 12: at (second), running, waiting, preempted, copied and
                              evicted until then, holders[request], blocks[block]
    pools[paged]              slot_bytes, and the counts before anything has run: empty
    happened[paged][12:4]     what the steps 9 to 12 did: counts, finished, preempted, copied, moved

The film is not asked: both are replayed from the log, and only when somebody looks one up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import takewhile
from typing import Any

from experiment.events import PoolReserved
from experiment.record.log import Record
from experiment.replay.arm_events import ArmEvents, split_by_arm
from experiment.replay.timeline import Picture, picture_at
from kvsim.accounting.ledger import Holder
from kvsim.core.step import OpKind, StepPlan

_NOTHING = (
    "allocated", "live", "wasted", "unwritten", "padding", "finished", "cached", "running",
    "waiting", "shared", "preempted", "copied", "evicted",
)  # fmt: skip
_MOVED = {OpKind.SHARE, OpKind.MERGE, OpKind.SWAP_OUT, OpKind.SWAP_IN}


class Lazy(Mapping[str, Any]):
    """A table whose entries are made when they are asked for."""

    def __init__(self, names: list[str], make: Callable[[str], Any]) -> None:
        self._names = names
        self._make = make

    def __getitem__(self, name: str) -> Any:
        made = self._make(str(name))
        if made is None:
            raise KeyError(name)
        return made

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def moments(record: Record) -> dict[str, Lazy]:
    """Of each arm, the state after each of its steps."""
    return {
        events.arm: Lazy(
            [str(step.plan.step) for step in events.steps],
            lambda step, events=events: _moment(events, int(step)),  # type: ignore[misc]
        )
        for events in split_by_arm(record)
        if events.pool is not None
    }


def pools(record: Record) -> dict[str, dict[str, Any]]:
    """Of each arm, its pool as it was reserved."""
    return {
        events.arm: {"slot_bytes": events.pool.bytes_per_slot, "empty": _empty(events.pool)}
        for events in split_by_arm(record)
        if events.pool is not None
    }


def _empty(pool: PoolReserved) -> dict[str, int]:
    size = pool.block_size
    reserved = 0 if pool.elastic else pool.blocks * size
    rest = 0 if pool.elastic else reserved - pool.engine_blocks * size
    watermark = min(pool.watermark_blocks * size, rest)
    nothing = dict.fromkeys(_NOTHING, 0)
    engine = pool.engine_blocks * size
    return nothing | {
        "reserved": reserved, "engine": engine, "watermark": watermark, "free": rest - watermark
    }  # fmt: skip


def happenings(record: Record) -> dict[str, Lazy]:
    """Of each arm, what a step did, or the several that the player shows as one."""
    return {
        events.arm: Lazy([], lambda name, events=events: _happened(events, name))  # type: ignore[misc]
        for events in split_by_arm(record)
        if events.pool is not None
    }


def _moment(events: ArmEvents, number: int) -> dict[str, Any] | None:
    seen = picture_at(events, number)
    if seen is None:
        return None
    steps = list(takewhile(lambda step: step.plan.step <= number, events.steps))
    second = round((steps[-1].t_ns - steps[0].started_ns) / 1e9, 4)
    plans = [step.plan for step in steps]
    return {"at": second, **_running(seen, plans), **_holders(seen)}


def _running(seen: Picture, plans: list[StepPlan]) -> dict[str, int]:
    ops = [op for plan in plans for op in plan.ops]
    return {
        "running": sum(not holder.finished for holder in seen.holders.values()),
        "waiting": plans[-1].waiting,
        "preempted": sum(len(plan.preempted) for plan in plans),
        "copied": sum(len(op.blocks) for op in ops if op.kind is OpKind.COPY),
        "evicted": sum(len(op.blocks) for op in ops if op.kind is OpKind.EVICT),
    }


def _holders(seen: Picture) -> dict[str, Any]:
    size = seen.shape.block_size
    named: dict[int, list[int]] = {}
    for request, holder in seen.holders.items():
        for block in holder.table:
            named.setdefault(block, []).append(request)
    holders = {
        request: _holder(request, holder, size, named) for request, holder in seen.holders.items()
    }
    blocks: dict[int, dict[str, Any]] = {}
    for facts in holders.values():
        for entry in facts["table"]:
            fullest = max(entry["filled"], blocks.get(entry["block"], entry)["filled"])
            owners = ", ".join(str(request) for request in named[entry["block"]])
            shared = {"owners": owners, "sharers": entry["owners"]}
            blocks[entry["block"]] = {**entry, "filled": fullest, **shared}
    return {"holders": holders, "blocks": blocks}


def _holder(
    request: int, holder: Holder, size: int, named: Mapping[int, list[int]]
) -> dict[str, Any]:
    slots = len(holder.table) * size
    table = [
        _entry(holder, logical, size) | {"block": block, "owners": len(named[block])}
        for logical, block in enumerate(holder.table)
    ]
    return {
        "request": request,
        "written": holder.written,
        "blocks": len(holder.table),
        "slots": slots,
        "wasted": slots if holder.finished else slots - holder.written,
        "table": table,
    }


def _entry(holder: Holder, logical: int, size: int) -> dict[str, int]:
    """Slots of a block that hold something, and those of them that are the request's own."""

    def inside(slots: int) -> int:
        return min(max(slots - logical * size, 0), size)

    before, filled = inside(holder.padding), inside(holder.padding + holder.written)
    return {"logical": logical, "filled": filled, "written": filled - before, "size": size}


def _happened(events: ArmEvents, name: str) -> dict[str, Any] | None:
    """``name`` is the last step and how many steps are one picture: ``12:4``."""
    last, _, every = name.partition(":")
    first = int(last) - int(last) % int(every)
    plans = [step.plan for step in events.steps]
    shown = [plan for plan in plans if first <= plan.step <= int(last)]
    ops = [op for plan in shown for op in plan.ops]
    counts: Counter[str] = Counter()
    for op in ops:
        if op.kind is OpKind.ALLOCATE:
            counts["allocated"] += len(op.blocks)
        elif op.kind is OpKind.EVICT:
            counts["evicted"] += len(op.blocks)
    return {
        "counts": dict(counts),
        "finished": [{"request": end.request} for plan in shown for end in plan.finished],
        "preempted": [{"request": request} for plan in shown for request in plan.preempted],
        "copied": [
            {"request": op.request, "old": old, "block": new}
            for op in ops
            if op.kind is OpKind.COPY
            for old, new in zip(op.sources, op.blocks, strict=True)
        ],
        "moved": [{"request": op.request, "n": len(op.blocks)} for op in ops if op.kind in _MOVED],
    }
