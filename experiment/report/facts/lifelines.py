"""Phases of each request: queued, prefill, decode, preempted, held.

    arrival ░░░░░░ first step ▒▒▒▒▒ first token ████████▞▞▞▞▒▒████ last token ╳╳╳╳ freed
            queued            prefill          decode  preempted            held

Derived from the logged steps; recomputing tokens after a preemption is prefill.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from experiment.events import WorkloadReady
from experiment.record.log import Record
from experiment.replay.arm_events import ArmEvents, arms_of
from kvsim.core.step import RELEASING_OPS, OpKind, StepPlan

Phase = Literal["queued", "prefill", "decode", "preempted", "held"]
PHASES: tuple[Phase, ...] = ("queued", "prefill", "decode", "preempted", "held")


@dataclass(frozen=True, slots=True)
class Span:
    """A phase from ``start`` to ``end``, in seconds since the begin of the arm's first step."""

    phase: Phase
    start: float
    end: float


@dataclass(slots=True)
class Lifeline:
    """One request of an arm, with its phases in order of time."""

    request: int
    spans: list[Span] = field(default_factory=list)

    def seconds(self, phase: Phase) -> float:
        """Time spent in a phase."""
        return sum(span.end - span.start for span in self.spans if span.phase == phase)

    @property
    def preemptions(self) -> int:
        """Number of preemptions."""
        return sum(span.phase == "preempted" for span in self.spans)


@dataclass(frozen=True, slots=True)
class Lifelines:
    """The requests of an arm, in the order of their first steps.

    ``prefill``: for each step, whether it computed prompt tokens.
    """

    arm: str
    lines: list[Lifeline]
    end: float
    prefill: tuple[bool, ...] = ()


def lifelines(record: Record) -> list[Lifelines]:
    """Lifelines of all arms with steps, in the order of the ladder; cached."""
    known = record.memo.get("lifelines")
    if isinstance(known, list):
        return known
    workload = record.first(WorkloadReady)
    later = {one.id for one in workload.requests if one.arrival} if workload else set()
    read = (_Reader(events, later).read() for events in arms_of(record))
    record.memo["lifelines"] = made = [one for one in read if one.lines]
    return made


class _Reader:
    """Reads the steps of an arm, with the current phase of each request.

    Steps are placed in time with the pauses for memory readings, which a logged wait leaves out. A
    request that is there from the beginning waits from there; of one that comes ``later`` the wait
    is what was logged.
    """

    def __init__(self, events: ArmEvents, later: set[int]) -> None:
        self._events = events
        self._lines: dict[int, Lifeline] = {}
        self._open: dict[int, tuple[Phase, float]] = {}
        self._ended: set[int] = set()
        self._later = later
        self._waited = {done.request: done.wait_s for done in events.requests}

    def read(self) -> Lifelines:
        """Read all lines; phases end with the last step at the latest."""
        if not self._events.steps:
            return Lifelines(self._events.arm, [], 0.0)
        origin = self._events.steps[0].started_ns
        end = 0.0
        prefill: list[bool] = []
        for step in self._events.steps:
            begun, end = (step.started_ns - origin) / 1e9, (step.t_ns - origin) / 1e9
            prefill.append(self._take(step.plan, begun, end))
        for request in list(self._open):
            self._close(request, end)
        return Lifelines(self._events.arm, list(self._lines.values()), end, tuple(prefill))

    def _take(self, plan: StepPlan, begun: float, end: float) -> bool:
        """Process a step; return whether any of its requests is in prefill."""
        for finish in plan.finished:
            self._ended.add(finish.request)
            if finish.request in self._open:
                self._enter(finish.request, "held", begun)
        freed = [op.request for op in plan.ops if op.kind in RELEASING_OPS]
        for request in freed:
            if request is not None and request in self._ended:
                self._close(request, begun)
        for request in plan.preempted:
            self._enter(request, "preempted", begun)
        # Swapped-out requests continue in the same phase.
        back = {op.request for op in plan.ops if op.kind is OpKind.SWAP_IN}
        prefill = False
        for chunk in plan.chunks:
            if chunk.request in self._ended:
                continue
            going_on = chunk.request in back or self._phase(chunk.request) == "decode"
            decoding = chunk.count == 1 and going_on
            prefill = prefill or not decoding
            self._enter(chunk.request, "decode" if decoding else "prefill", begun)
            if chunk.samples and not decoding:
                self._enter(chunk.request, "decode", end)
        return prefill

    def _phase(self, request: int) -> str:
        return self._open[request][0] if request in self._open else "none"

    def _enter(self, request: int, phase: Phase, now: float) -> None:
        if self._phase(request) == phase:
            return
        if request not in self._lines:
            self._lines[request] = Lifeline(request)
            waited = self._waited.get(request, 0.0)
            if waited > 0:
                arrived = max(0.0, now - waited) if request in self._later else 0.0
                self._lines[request].spans.append(Span("queued", arrived, now))
        self._close(request, now)
        self._open[request] = (phase, now)

    def _close(self, request: int, now: float) -> None:
        opened = self._open.pop(request, None)
        if opened is not None and now > opened[1]:
            self._lines[request].spans.append(Span(opened[0], opened[1], now))
