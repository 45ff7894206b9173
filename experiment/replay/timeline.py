"""Steps of an arm from its logged plans: where every slot stood after each, and on average.

The plans are replayed by kvsim's ledger; key frames and counts over the tensors are held against
it, so that a log that contradicts itself is noticed.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping

from experiment.events import Keyframe, PoolReserved, Step
from experiment.events.base import share_fields_set
from experiment.replay.arm_events import ArmEvents
from experiment.replay.step_rows import SlotFigures, StepRow
from experiment.text.messages import Message, message
from kvsim.accounting.ledger import Ledger, PoolShape, ReplayError, SlotCounts, SlotState
from kvsim.core.step import GIVES_BACK, OpKind, StepPlan, plan_from_json


def timeline(events: ArmEvents) -> tuple[list[StepRow], Message | None]:
    """One row per step, derived by replaying the plans; and what stopped the replay, if anything.

    Key frames and block tables are compared on the way.
    """
    if events.pool is None:
        return [], None
    shape = pool_shape(events.pool)
    ledger = Ledger(shape)
    stays = _stays(events.steps)
    returns = Returns()
    rows: list[StepRow] = []
    for index, step in enumerate(events.steps):
        try:
            plan = plan_from_json(step.plan)
            counts = ledger.apply(plan)
            _check_keyframe(ledger, events.keyframes.get(plan.step))
        except (ReplayError, ValueError) as error:
            return rows, message("problem.replay", step=index, error=str(error))
        for op in plan.ops:
            if op.request is not None and op.kind in GIVES_BACK:
                stays[op.request].popleft()
        unwritten = counts[SlotState.UNWRITTEN]
        row = StepRow(
            step=plan.step,
            t_ns=step.t_ns,
            started_ns=step.started_ns,
            tokens=plan.tokens,
            running=_running(ledger, plan),
            waiting=plan.waiting,
            preempted=len(plan.preempted),
            witness=step.written_slots,
            written=ledger.written_slots,
            never_written=min(_never_written(ledger, stays), unwritten),
            shared=ledger.shared_blocks,
            copied=_blocks_of(plan, OpKind.COPY),
            swapped=_blocks_of(plan, OpKind.SWAP_OUT, OpKind.SWAP_IN),
            held_blocks=ledger.owned_blocks,
            table_entries=ledger.table_entries,
            found_late=returns.found_late(plan),
            **_figures(counts).model_dump(),
        )
        rows.append(share_fields_set(row))
    return rows, None


class Returns:
    """How far each request has computed, and who has lost it."""

    def __init__(self) -> None:
        self._reached: dict[int, int] = {}
        self._preempted: set[int] = set()

    def found_late(self, plan: StepPlan) -> int:
        """Tokens that those who come back in this step need not compute for the first time."""
        found = 0
        self._preempted.update(plan.preempted)
        for chunk in plan.chunks:
            reached = self._reached.get(chunk.request, 0)
            if chunk.request in self._preempted:
                found += max(0, chunk.start - reached)
            self._reached[chunk.request] = max(reached, chunk.start + chunk.count)
        for op in plan.ops:
            # One that is forked has what its parent has.
            if op.kind is OpKind.SHARE and op.request is not None:
                self._reached[op.request] = max(self._reached.get(op.request, 0), op.tokens)
        return found


def pool_shape(pool: PoolReserved) -> PoolShape:
    """The pool of an arm as kvsim describes it."""
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
    """Slots in each state on average over the time in which the arm computed."""
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
    """Requests in a step, on average over the time in which the arm computed."""
    busy = [(row.running, row.t_ns - row.started_ns) for row in rows if row.running]
    total = sum(time for _, time in busy)
    return sum(count * time for count, time in busy) / total if total else None


def _figures(counts: SlotCounts) -> SlotFigures:
    return SlotFigures(
        reserved=counts.reserved,
        allocated=counts.allocated,
        wasted=counts.wasted,
        **{state.value: counts[state] for state in SlotState},
    )


def _stays(steps: Iterable[Step]) -> Mapping[int, deque[int]]:
    """Positions that each request has written by the end of each of its stays in the pool.

    A stay ends when the request gives its blocks back. A preempted request comes back: another
    stay. The last stay may still be open.
    """
    stays: defaultdict[int, deque[int]] = defaultdict(deque)
    written: dict[int, int] = {}
    for step in steps:
        try:
            plan = plan_from_json(step.plan)
        except ValueError:
            continue
        for op in plan.ops:
            if op.request is not None and op.kind in GIVES_BACK:
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
    """Slots that are handed out now and will be given back without ever being written.

    The first of a request's ``stays`` is the present one.
    """
    size = ledger.shape.block_size
    return sum(
        max(0, len(h.table) * size - h.padding - max(h.written, stays[request][0]))
        for request, h in ledger.holders.items()
        if not h.finished
    )


def _running(ledger: Ledger, plan: StepPlan) -> int:
    """Requests that the step computes; rows of a batch that have ended do not count."""
    return sum(not ledger.holders[chunk.request].finished for chunk in plan.chunks)


def _check_keyframe(ledger: Ledger, frame: Keyframe | None) -> None:
    if frame is None:
        return
    tables = {request: list(table) for request, table in ledger.tables().items()}
    if tables != {request: table for request, table in frame.tables.items() if table}:
        raise ReplayError(f"block tables differ from the picture taken at step {frame.step}")
    written = {r: h.written for r, h in ledger.holders.items() if not h.finished}
    if written != frame.written:
        raise ReplayError(f"written slots differ from the picture taken at step {frame.step}")


def witness_problems(rows: list[StepRow]) -> list[Message]:
    """Steps at which the tensors themselves disagree with the tables."""
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
