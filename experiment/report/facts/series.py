"""Data of charts: slots over time, times of readings, block tables after one step."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from experiment.events import Stage, StageEntered
from experiment.record.log import Record
from experiment.replay.arm_events import ArmEvents, arms_of
from experiment.replay.step_rows import StepRow
from experiment.replay.timeline import PoolSnapshot, snapshot_at, timeline

MARKED_STAGES = (Stage.CACHE_READY, Stage.REQUEST_DONE, Stage.LAST_STEP, Stage.RELEASED)


@dataclass(frozen=True, slots=True)
class Mark:
    """A pause of the arm for memory readings."""

    stage: str
    request: int | None
    seconds: float
    step: int


@dataclass(frozen=True, slots=True)
class Series:
    """Slots of one arm: ``rows[i]`` is from ``edges[i]`` to ``edges[i + 1]``, in seconds."""

    arm: str
    slot_bytes: float
    edges: tuple[float, ...]
    rows: tuple[StepRow, ...]
    marks: tuple[Mark, ...]

    @property
    def end(self) -> float:
        """The last edge."""
        return self.edges[-1]

    def by_step(self) -> Series:
        """Series over step numbers instead of seconds."""
        marks = tuple(Mark(m.stage, m.request, float(m.step), m.step) for m in self.marks)
        edges = tuple(float(i) for i in range(len(self.rows) + 1))
        return Series(self.arm, self.slot_bytes, edges, self.rows, marks)

    def thinned(self, limit: int) -> Series:
        """Reduce to at most ``limit`` rows, by the most allocated slots of each group."""
        size = -(-len(self.rows) // limit)
        if size <= 1:
            return self
        starts = range(0, len(self.rows), size)
        rows = tuple(
            max(self.rows[i : i + size], key=lambda row: (row.allocated, row.live)) for i in starts
        )
        edges = (*(self.edges[i] for i in starts), self.end)
        return Series(self.arm, self.slot_bytes, edges, rows, self.marks)


def all_series(record: Record) -> list[Series]:
    """Series of all arms with steps, in the order of the ladder."""
    stages: dict[str, list[StageEntered]] = {}
    for stage in record.of(StageEntered):
        stages.setdefault(stage.arm, []).append(stage)
    candidates = (_series(events, stages.get(events.arm, [])) for events in arms_of(record))
    return [series for series in candidates if series is not None]


def _series(events: ArmEvents, stages: list[StageEntered]) -> Series | None:
    rows, _ = timeline(events)
    if not rows or events.pool is None:
        return None
    if _of_another_repeat(stages, rows[0].started_ns):
        stages = []
    ready = (s.t_ns for s in stages if s.stage is Stage.CACHE_READY)
    origin = min(next(ready, rows[0].started_ns), rows[0].started_ns)
    ends = [row.t_ns for row in rows]
    if events.second_part is not None:  # whose steps are not recorded, and the cache outlasts it
        stages = [s for s in stages if s.stage is not Stage.RELEASED]
    marks = tuple(
        Mark(s.stage.value, s.request, (s.t_ns - origin) / 1e9, bisect_right(ends, s.t_ns))
        for s in stages
        if s.stage in MARKED_STAGES
    )
    starts = [(row.started_ns - origin) / 1e9 for row in rows]
    end = max([(ends[-1] - origin) / 1e9, *(mark.seconds for mark in marks)])
    return Series(events.arm, events.pool.bytes_per_slot, (*starts, end), tuple(rows), marks)


def _of_another_repeat(stages: list[StageEntered], first_ns: int) -> bool:
    """Whether readings are from an earlier repeat: experiments read memory in the warm-up."""
    during = (Stage.REQUEST_DONE, Stage.LAST_STEP)
    return any(s.stage in during and s.t_ns < first_ns for s in stages)


def picture(record: Record, arm: str, step: int) -> PoolSnapshot | None:
    """Block tables of an arm after ``step``; None if the log has gaps before it."""
    events = next((e for e in arms_of(record) if e.arm == arm), None)
    return snapshot_at(events, step) if events else None
