"""Data of the player's template: films of the arms, the two to open, and texts.

The script composes sentences, so it gets the texts under ``player`` in both languages.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from experiment.events import WorkloadReady
from experiment.record.log import Record
from experiment.replay.arm_events import ArmEvents, arms_of
from experiment.replay.frames import Frame, frame_size, merged
from experiment.replay.timeline import replayed
from experiment.report.facts.bilingual import Bilingual
from experiment.report.html.embed import safe_json
from experiment.text import LANGUAGES, catalogue
from experiment.text.messages import arm_message
from kvsim.core.step import OpKind, StepPlan

MAX_OF_ONE = 420_000  # of one arm, unless the page has less space
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
    data: dict[str, Any]


def films(arms: Sequence[tuple[ArmEvents, bool]], most_bytes: int = MAX_OF_ONE) -> list[Film]:
    """Films of the arms with replayable steps, all with the same ``every``; see :func:`film`."""

    def made(every: int) -> list[Film]:
        encoded = (film(events, slab, every, most_bytes) for events, slab in arms)
        return [one for one in encoded if one is not None]

    reel = made(1)
    while reel and any(one.every != (most := max(each.every for each in reel)) for one in reel):
        reel = made(most)
    return reel


def film(arm: ArmEvents, slab: bool, every: int = 1, most_bytes: int = MAX_OF_ONE) -> Film | None:
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
    drawn = _encode(merged(frames, every), arm.steps[0].started_ns)
    while every < steps and len(json.dumps(drawn, separators=(",", ":"))) > most_bytes:
        every *= 2
        drawn = _encode(merged(frames, every), arm.steps[0].started_ns)
    pool = arm.pool
    data = {
        "frames": drawn,
        "arm": arm.arm, "blocks": pool.blocks, "size": pool.block_size, "slab": slab,
        "engine": pool.engine_blocks, "watermark": pool.watermark_blocks,
        "elastic": pool.elastic, "slotBytes": pool.bytes_per_slot, "every": every,
        "steps": steps,
        # Without the pauses of measurements, which times of steps include.
        "took": round(arm.finished.generate_s, 4) if arm.finished else None,
    }  # fmt: skip
    return Film(arm.arm, every, data)


def _encode(frames: Sequence[Frame], origin: int) -> list[dict[str, Any]]:
    """Encode frames; ``origin`` is in ns.

    ``n``: last step; ``t``: its end in seconds; ``g``: requests that hold nothing any more;
    ``h``: [request, kept entries, new entries, padding, finished], the last two if not 0; ``w``:
    [request, positions that it writes in this frame and each one after it]; ``k``, ``u``: blocks
    cached from now on, and no longer; ``q``: number of waiting requests.
    """
    written: dict[int, int] = {}
    rates: dict[int, int] = {}
    drawn = []
    for frame in frames:
        for request in frame.gone:
            del written[request], rates[request]
        now = dict.fromkeys(rates, 0) | {
            request: count - written.get(request, 0) for request, count in frame.written.items()
        }
        changed = [[r, rate] for r, rate in now.items() if rate != rates.get(r, 0)]
        written |= frame.written
        rates = now
        values = {
            "g": list(frame.gone),
            "h": [_table(request, *change) for request, change in frame.tables.items()],
            "w": changed,
            "k": pack(sorted(frame.cached)),
            "u": pack(sorted(frame.uncached)),
            **_events(frame.plans),
            "q": frame.plans[-1].waiting,
        }
        seconds = round((frame.t_ns - origin) / 1e9, 4)
        place = {"n": frame.plans[-1].step, "t": seconds}
        drawn.append(place | {name: value for name, value in values.items() if value})
    return drawn


def _table(
    request: int, kept: int, behind: Sequence[int], padding: int, finished: bool
) -> list[Any]:
    ends = [padding, 1] if finished else [padding] if padding else []
    return [request, kept, pack(behind), *ends]


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


_LEFT = ("contiguous.batch", "slabs", "contiguous.sequential", "contiguous.growing")
_RIGHT = ("paged", "vllm", "transformers_paged")
_PREFIX = "player."
# Bytes of all films of a page; further arms are omitted, except the two that open first.
MAX_BYTES = 900_000


@dataclass(frozen=True, slots=True)
class Stage:
    """The player of a run: available arms, those that open first, and the embedded data.

    ``size`` is the size of the films in bytes. ``engine``: whether any engine reserves blocks for
    itself.
    """

    arms: list[str]
    left: str
    right: str
    left_out: list[str]
    data: Markup
    size: int
    engine: bool


def stage(b: Bilingual, record: Record, room: int = MAX_BYTES) -> Stage | None:
    """The player's part of the page, in ``room`` bytes; None without logged steps."""
    workload = record.first(WorkloadReady)
    longest = workload.max_length if workload else 0
    arms = [
        (events, pool is not None and (pool.elastic or pool.block_size >= max(longest, 2)))
        for events in arms_of(record)
        for pool in (events.pool,)
    ]  # with space for a whole request, a block is drawn as a row
    made = {one.arm: one for one in films(arms, min(MAX_OF_ONE, room // 2))}
    if not made:
        return None
    names = list(made)
    left = _first(_LEFT, names) or names[0]
    right = _first(_RIGHT, [name for name in names if name != left]) or names[-1]
    kept = _within(made, (left, right), room)
    data = {
        "films": [made[name].data for name in kept],
        "texts": {lang: _texts(b, lang, kept) for lang in LANGUAGES},
    }
    out = [name for name in names if name not in kept]
    size = sum(_size(made[name]) for name in kept)
    engine = any(made[name].data["engine"] for name in kept)
    return Stage(kept, left, right, out, safe_json(data), size, engine)


def _first(wanted: tuple[str, ...], names: list[str]) -> str | None:
    return next((name for name in wanted if name in names), None)


def _within(made: dict[str, Film], first: tuple[str, str], room: int) -> list[str]:
    """Arms whose films fit into ``room`` bytes, in order."""
    chosen: set[str] = set()
    for name in sorted(made, key=lambda name: name not in first):
        size = _size(made[name])
        if name in first or size <= room:
            chosen.add(name)
            room -= size
    return [name for name in made if name in chosen]


def _size(film: Film) -> int:
    return len(json.dumps(film.data, separators=(",", ":")))


def _texts(b: Bilingual, lang: str, arms: list[str]) -> dict[str, Any]:
    """Texts of the script, and names of the arms."""
    texts = {
        key.removeprefix(_PREFIX): text
        for key, text in catalogue(lang).items()
        if key.startswith(_PREFIX)
    }
    return texts | {f"arm.{arm}": b.plain(lang, arm_message(arm)) for arm in arms}
