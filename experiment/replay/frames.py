"""Frames of the player: changes of an arm's pool from one frame to the next.

    frame     steps                     step // every
    0         0 1 2 3                   0
    1         4 5 6 7                   1

They are recorded during the replay, which need not be repeated. Consecutive frames can be merged:
each has net changes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from kvsim.accounting.ledger import Owner
from kvsim.core.step import StepPlan

MOST_FRAMES = 2400


@dataclass(frozen=True, slots=True)
class Frame:
    """Changes of some steps; ``t_ns`` is the end of the last one.

    Attributes:
        gone: requests that hold nothing any more.
        tables: requests whose table or end changed: number of unchanged leading entries, further
            entries, padding slots at the front, whether it has finished.
        written: number of written positions, if changed.
        cached: blocks that are cached from now on.
        uncached: blocks that are no longer cached.
    """

    plans: tuple[StepPlan, ...]
    t_ns: int
    gone: tuple[int, ...]
    tables: Mapping[int, tuple[int, list[int], int, bool]]
    written: Mapping[int, int]
    cached: frozenset[int]
    uncached: frozenset[int]

    def apply(self, holders: dict[int, Owner], cached: set[int]) -> None:
        """Update the state before this frame to the state after it."""
        for request in self.gone:
            del holders[request]
        for request, (kept, behind, padding, finished) in self.tables.items():
            holder = holders.setdefault(request, Owner())
            holder.table[kept:] = behind
            holder.padding, holder.finished = padding, finished
        for request, count in self.written.items():
            holders[request].written = count
        cached -= self.uncached
        cached |= self.cached


@dataclass(slots=True)
class FrameRecorder:
    """Record frames during a replay.

    Args:
        every: steps per frame, by step number.
    """

    every: int
    frames: list[Frame] = field(default_factory=list)
    _plans: list[StepPlan] = field(default_factory=list)
    _t_ns: int = 0
    _holders: dict[int, Owner] = field(default_factory=dict)
    _cached: set[int] = field(default_factory=set)

    def ends_before(self, plan: StepPlan) -> bool:
        """Whether a frame is open to which this plan does not belong."""
        return bool(self._plans) and plan.step // self.every != self._plans[-1].step // self.every

    def add(self, plan: StepPlan, t_ns: int) -> None:
        """Add a replayed step to the open frame."""
        self._plans.append(plan)
        self._t_ns = t_ns

    def close(self, holders: Mapping[int, Owner], cached: Collection[int]) -> None:
        """Close the open frame with the state after its last step."""
        if not self._plans:
            return
        now = set(cached)
        frame = Frame(
            plans=tuple(self._plans),
            t_ns=self._t_ns,
            gone=tuple(request for request in self._holders if request not in holders),
            tables={
                request: change
                for request in sorted(_touched(self._plans) & holders.keys())
                if (change := self._table(request, holders[request])) is not None
            },
            written={
                request: holder.written
                for request, holder in holders.items()
                if request not in self._holders or holder.written != self._holders[request].written
            },
            cached=frozenset(now - self._cached),
            uncached=frozenset(self._cached - now),
        )
        frame.apply(self._holders, self._cached)
        self.frames.append(frame)
        self._plans = []

    def _table(self, request: int, now: Owner) -> tuple[int, list[int], int, bool] | None:
        before = self._holders.get(request)
        if before is None:
            return 0, list(now.table), now.padding, now.finished
        shorter = min(len(before.table), len(now.table))
        pairs = enumerate(zip(before.table, now.table, strict=False))
        kept = next((place for place, (old, new) in pairs if old != new), shorter)
        same = kept == len(before.table) == len(now.table)
        if same and (now.padding, now.finished) == (before.padding, before.finished):
            return None
        return kept, list(now.table[kept:]), now.padding, now.finished


def merged(frames: Sequence[Frame], every: int) -> list[Frame]:
    """The same changes with ``every`` steps per frame, a multiple of the present number."""
    recorder = FrameRecorder(every)
    holders: dict[int, Owner] = {}
    cached: set[int] = set()
    for frame in frames:
        if recorder.ends_before(frame.plans[0]):
            recorder.close(holders, cached)
        frame.apply(holders, cached)
        for plan in frame.plans:
            recorder.add(plan, frame.t_ns)
    recorder.close(holders, cached)
    return recorder.frames


def _touched(plans: Collection[StepPlan]) -> set[int]:
    """Requests whose table or end may have changed."""
    found: set[int] = set()
    for plan in plans:
        found |= {op.request for op in plan.ops if op.request is not None}
        found |= {chunk.request for chunk in plan.chunks if chunk.padding}
        found |= {finish.request for finish in plan.finished}
    return found


def frame_size(steps: int) -> int:
    """Steps per frame, a power of two, such that there are at most :data:`MOST_FRAMES`."""
    every = 1
    while every * MOST_FRAMES < steps:
        every *= 2
    return every
