"""One pass over an arm's plans: slot states after each step, and data for reports.

    plan ─► Ledger.apply ─► row, tables at the peak, frame for the player

Keyframes and counts of the tensors are compared with kvsim's ledger, which detects inconsistent
logs.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from experiment.events import Keyframe, PoolReserved, Step
from experiment.events.base import share_fields_set
from experiment.replay.arm_events import ArmEvents
from experiment.replay.frames import Frame, FrameRecorder, frame_size
from experiment.replay.step_rows import SlotFigures, StepRow
from experiment.text.messages import Message, message
from kvsim.accounting.ledger import (
    Ledger,
    Owner,
    PoolShape,
    ReplayError,
    SlotCounts,
    SlotState,
)
from kvsim.core.step import RELEASING_OPS, OpKind, StepPlan


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """Block tables after one step; ``cached`` blocks have no owner."""

    shape: PoolShape
    step: int
    holders: dict[int, Owner]
    cached: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Replay:
    """Result of one pass over an arm's plans.

    Attributes:
        rows: one per step, up to the first that contradicts earlier ones.
        problem: why the replay ended early; or None.
        snapshots: tables at the step with most live slots, and at that of the arm's example.
        frames: for the player; None if not requested.
    """

    rows: list[StepRow]
    problem: Message | None
    snapshots: Mapping[int, PoolSnapshot]
    frames: list[Frame] | None


def timeline(events: ArmEvents) -> tuple[list[StepRow], Message | None]:
    """One row per step, and why the replay ended early; see :func:`replayed`."""
    found = replayed(events)
    return found.rows, found.problem


def replayed(events: ArmEvents, frames: bool = False) -> Replay:
    """Replay an arm's plans; the result is cached.

    Args:
        frames: record frames too. Always done if ``events`` are for a report.
    """
    known = events.memo.get("replay")
    if isinstance(known, Replay) and (known.frames is not None or not frames):
        return known
    made = _replay(events, frames or events.is_drawn)
    events.memo["replay"] = made
    return made


def _replay(events: ArmEvents, frames: bool) -> Replay:
    if events.pool is None:
        return Replay([], None, {}, [] if frames else None)
    one = _Pass(events, events.pool, frames)
    problem: Message | None = None
    for index, step in enumerate(events.steps):
        try:
            one.take(step)
        except ReplayError as error:
            problem = message("problem.replay", step=index, error=str(error))
            break
    return one.end(problem)


def snapshot_at(events: ArmEvents, step: int) -> PoolSnapshot | None:
    """Block tables after a step; None if the replay does not reach it.

    Steps other than those in :attr:`Replay.snapshots` are replayed from the beginning.
    """
    known = replayed(events).snapshots.get(step)
    if known is not None or events.pool is None:
        return known
    ledger = Ledger(pool_shape(events.pool))
    for event in events.steps:
        try:
            ledger.apply(event.plan)
        except ReplayError:
            return None
        if ledger.last_step == step:
            return PoolSnapshot(ledger.shape, step, ledger.owners, frozenset(ledger.cached))
    return None


class _Pass:
    """Apply each plan of an arm once, and record what reports need."""

    def __init__(self, events: ArmEvents, pool: PoolReserved, frames: bool) -> None:
        self._events = events
        self._ledger = Ledger(pool_shape(pool))
        self._stays = _stays(events.steps)
        self._resumptions = Resumptions()
        self._rows: list[StepRow] = []
        self._snapshots: dict[int, PoolSnapshot] = {}
        self._most_live = -1
        self._peak: PoolSnapshot | None = None
        self._example_step = events.mapping.step if events.mapping else None
        self._frames = FrameRecorder(frame_size(len(events.steps))) if frames else None

    def take(self, step: Step) -> None:
        """Apply a step.

        Raises:
            ReplayError: it contradicts earlier steps.
        """
        plan, ledger = step.plan, self._ledger
        if self._may_lose(plan):
            self._record_peak()
        if self._frames and self._frames.ends_before(plan):
            self._frames.close(ledger.owners, ledger.cached)
        self._resumptions.lose(plan, ledger.owners)
        counts = ledger.apply(plan)
        _check_keyframe(ledger, self._events.keyframes.get(plan.step))
        self._rows.append(self._row(step, counts))
        self._most_live = max(self._most_live, counts[SlotState.LIVE])
        if self._frames:
            self._frames.add(plan, step.t_ns)
            if self._frames.every == 1:
                self._frames.close(ledger.owners, ledger.cached)
        if plan.step == self._example_step:
            self._snapshots[plan.step] = self._snapshot()

    def end(self, problem: Message | None) -> Replay:
        """Return the result; after a contradiction the present state is invalid."""
        if problem is None:
            self._record_peak()
        if self._peak:
            self._snapshots[self._peak.step] = self._peak
        frames = self._frames
        if frames and problem is None:
            frames.close(self._ledger.owners, self._ledger.cached)
        return Replay(self._rows, problem, self._snapshots, frames.frames if frames else None)

    def _may_lose(self, plan: StepPlan) -> bool:
        """Whether fewer slots may be live after this plan, so that the peak may be before it."""
        grows = (OpKind.ALLOCATE, OpKind.SHARE)
        return bool(plan.finished) or any(op.kind not in grows for op in plan.ops)

    def _record_peak(self) -> None:
        if self._rows and self._rows[-1].live >= self._most_live:
            self._peak = self._snapshot()

    def _snapshot(self) -> PoolSnapshot:
        ledger = self._ledger
        holders = {r: replace(h, table=list(h.table)) for r, h in ledger.owners.items()}
        return PoolSnapshot(ledger.shape, ledger.last_step, holders, frozenset(ledger.cached))

    def _row(self, step: Step, counts: SlotCounts) -> StepRow:
        plan, ledger = step.plan, self._ledger
        for op in plan.ops:
            if op.request is not None and op.kind in RELEASING_OPS:
                self._stays[op.request].popleft()
        unwritten = counts[SlotState.UNWRITTEN]
        row = StepRow.model_construct(
            step=plan.step,
            t_ns=step.t_ns,
            started_ns=step.started_ns,
            tokens=plan.tokens,
            running=_running(ledger, plan),
            waiting=plan.waiting,
            preempted=len(plan.preempted),
            witness=step.written_slots,
            written=ledger.written_slots,
            never_written=min(_never_written(ledger, self._stays), unwritten),
            shared=ledger.shared_blocks,
            copied=_blocks_of(plan, OpKind.COPY),
            swapped=_blocks_of(plan, OpKind.SWAP_OUT, OpKind.SWAP_IN),
            held_blocks=ledger.owned_blocks,
            table_entries=ledger.table_entries,
            found_late=self._resumptions.found_late(plan),
            **_figures(counts),  # type: ignore[arg-type]
        )
        return share_fields_set(row)


class Resumptions:
    """Progress of preempted requests, and what they find in the prefix cache on resumption."""

    def __init__(self) -> None:
        self._reached: dict[int, int] = {}

    def lose(self, plan: StepPlan, holders: Mapping[int, Owner]) -> None:
        """Record progress before a step takes blocks from requests."""
        for request in plan.preempted:
            if request in holders:
                before = self._reached.get(request, 0)
                self._reached[request] = max(before, holders[request].written)

    def found_late(self, plan: StepPlan) -> int:
        """Cached tokens of resumed requests that they had not computed before."""
        if not self._reached:
            return 0
        found = 0
        for chunk in plan.chunks:
            reached = self._reached.get(chunk.request)
            if reached is not None:
                found += max(0, chunk.start - reached)
                self._reached[chunk.request] = max(reached, chunk.start + chunk.count)
        return found


def pool_shape(pool: PoolReserved) -> PoolShape:
    """Pool of an arm as kvsim's PoolShape."""
    return PoolShape(
        blocks=pool.blocks,
        block_size=pool.block_size,
        slot_bytes=pool.slot_bytes,
        watermark_blocks=pool.watermark_blocks,
        elastic=pool.elastic,
        scale_bytes=pool.scale_bytes,
        engine_blocks=pool.engine_blocks,
    )


def mean_slots(rows: list[StepRow]) -> SlotFigures | None:
    """Time-weighted mean of slots in each state while the arm computed."""
    busy = [row for row in rows if row.running and row.t_ns > row.started_ns]
    total = sum(row.t_ns - row.started_ns for row in busy)
    if not total:
        return None
    names = SlotFigures.model_fields
    return SlotFigures(
        **{
            name: sum(getattr(row, name) * (row.t_ns - row.started_ns) for row in busy) / total
            for name in names
        }
    )


def mean_running(rows: list[StepRow]) -> float | None:
    """Time-weighted mean of running requests while the arm computed."""
    busy = [(row.running, row.t_ns - row.started_ns) for row in rows if row.running]
    total = sum(time for _, time in busy)
    return sum(count * time for count, time in busy) / total if total else None


_NO_SLOTS = dict.fromkeys(SlotFigures.model_fields, 0.0)


def _figures(counts: SlotCounts) -> dict[str, float]:
    allocated = float(counts.allocated)
    found = _NO_SLOTS | {state.value: float(count) for state, count in counts.states.items()}
    found["reserved"] = float(counts.reserved)
    found["allocated"], found["wasted"] = allocated, allocated - found["live"]
    return found


def _stays(steps: Iterable[Step]) -> Mapping[int, deque[int]]:
    """Positions that each request has written by the end of each of its stays in the pool.

    A stay ends when the request frees its blocks; a preempted request has another one. The last
    stay may be open.
    """
    stays: defaultdict[int, deque[int]] = defaultdict(deque)
    written: dict[int, int] = {}
    for step in steps:
        plan = step.plan
        for op in plan.ops:
            if op.request is not None and op.kind in RELEASING_OPS:
                stays[op.request].append(written.pop(op.request, 0))
            elif op.request is not None:
                written.setdefault(op.request, 0)
        for chunk in plan.chunks:
            written[chunk.request] = chunk.start + chunk.count
    for request, count in written.items():
        stays[request].append(count)
    return stays


def _blocks_of(plan: StepPlan, *kinds: OpKind) -> int:
    return sum(len(op.blocks) for op in plan.ops if op.kind in kinds)


def _never_written(ledger: Ledger, stays: Mapping[int, deque[int]]) -> int:
    """Allocated slots that will be freed without being written.

    The first of a request's ``stays`` is the present one.
    """
    size, found = ledger.shape.block_size, 0
    for request, holder in ledger.owners.items():
        slots = len(holder.table) * size - holder.padding
        if slots > holder.written and not holder.finished:
            found += max(0, slots - max(holder.written, stays[request][0]))
    return found


def _running(ledger: Ledger, plan: StepPlan) -> int:
    """Requests computed in the step, without finished rows of a batch."""
    return sum(not ledger.owners[chunk.request].finished for chunk in plan.chunks)


def _check_keyframe(ledger: Ledger, frame: Keyframe | None) -> None:
    if frame is None:
        return
    tables = {request: list(table) for request, table in ledger.tables().items()}
    if tables != {request: table for request, table in frame.tables.items() if table}:
        raise ReplayError(f"block tables differ from the picture taken at step {frame.step}")
    written = {r: h.written for r, h in ledger.owners.items() if not h.finished}
    if written != frame.written:
        raise ReplayError(f"written slots differ from the picture taken at step {frame.step}")


def witness_problems(rows: list[StepRow]) -> list[Message]:
    """Steps at which tensors and tables disagree."""
    wrong = [row for row in rows if row.witness is not None and row.witness != row.written]
    if not wrong:
        return []
    first = wrong[0]
    return [
        message(
            "problem.witness",
            n=len(wrong), step=first.step, tables=first.written, tensors=first.witness,
        )
    ]  # fmt: skip
