"""Replay of a recorded run: whether its requests lead to the same plans, block for block.

    record    plan 0 ──► plan 1 ──► plan 2 ...       decisions of an engine
                │ stops, forks, aborts after it      external events only: sampled stop tokens,
                ▼                                    aborts by callers
    replay    plan 0 ──► plan 1 ──► plan 2 ...       scheduled again, compared part by part

Stop tokens, ends of beams and aborts are read from the next plan's finished requests, forks from
the blocks that it shares with new ids. Everything else follows from lengths and limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kvsim.core.blocks import BlockPool
from kvsim.core.limits import SchedulerConfig
from kvsim.core.request import Keys, Request
from kvsim.core.scheduler import Scheduler
from kvsim.core.step import Finish, FinishReason, OpKind, StepPlan

_PARTS = ("step", "finished", "preempted", "ops", "chunks", "waiting")
# Not in logs of earlier versions, nor of engines that do not tell.
_REASONS = ("causes", "wait")
_EXTERNAL = (FinishReason.ABORTED, FinishReason.REFUSED)


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A request of a recorded run as submitted, without the samples and beams that it forks.

    Attributes:
        arrival_step: number of the first plan after its submission.
        keys: of its full blocks, see :class:`kvsim.core.request.Request`; inherited by children.
    """

    id: int
    prompt_tokens: int
    max_new_tokens: int
    arrival_step: int = 0
    priority: int = 0
    beams: int = 1
    keys: Keys | None = None


@dataclass(frozen=True, slots=True)
class PlanDifference:
    """The first plan that differs, and its first differing part.

    ``part`` is ``missing`` if the replay goes on after the record.
    """

    step: int
    part: str


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Number of equal plans, and the first difference, if any."""

    equal: int
    difference: PlanDifference | None


def replay_run(
    recorded: Sequence[StepPlan],
    requests: Iterable[RecordedRequest],
    blocks: int,
    block_size: int,
    config: SchedulerConfig,
    child_keys: Mapping[int, Keys] | None = None,
) -> ReplayResult:
    """Schedule a recorded run again and compare; stops at the first plan that differs.

    Args:
        recorded: all plans of the run, from its first step on.
        child_keys: keys of forked requests by id, if they differ from their parent's.
    """
    scheduler = Scheduler(BlockPool(blocks, block_size), config)
    run = _Replayer(scheduler, sorted(requests, key=lambda r: r.arrival_step), child_keys or {})
    nothing = StepPlan(recorded[-1].step + 1) if recorded else StepPlan(0)
    for number, (plan, following) in enumerate(pairwise((*recorded, nothing))):
        run.arrive(plan.step)
        if difference := compare_plans(plan, scheduler.schedule()):
            return ReplayResult(number, difference)
        run.complete(plan, following)
    if scheduler.has_work:
        return ReplayResult(len(recorded), PlanDifference(nothing.step, "missing"))
    return ReplayResult(len(recorded), None)


def compare_plans(recorded: StepPlan, replayed: StepPlan) -> PlanDifference | None:
    """Return the first part in which two plans differ."""
    for part in (*_PARTS, *_REASONS):
        recorded_part = getattr(recorded, part)
        known = recorded_part or part in _PARTS
        if known and recorded_part != getattr(replayed, part):
            return PlanDifference(recorded.step, part)
    return None


class _Replayer:
    def __init__(
        self, scheduler: Scheduler, requests: list[RecordedRequest], child_keys: Mapping[int, Keys]
    ) -> None:
        self.scheduler = scheduler
        self.pending = requests[::-1]
        self.child_keys = child_keys
        self.known: dict[int, Request] = {}

    def arrive(self, step: int) -> None:
        while self.pending and self.pending[-1].arrival_step <= step:
            one = self.pending.pop()
            self._register(
                Request(
                    one.id, one.prompt_tokens, one.max_new_tokens, one.keys, one.priority,
                    one.beams,
                )
            )  # fmt: skip
            self.scheduler.add(self.known[one.id])

    def complete(self, plan: StepPlan, following: StepPlan) -> None:
        """Apply the recorded events between two plans to the scheduler."""
        ended = following.finished
        inner = [i for i, finish in enumerate(ended) if finish.reason not in _EXTERNAL]
        # Aborts listed before all other ends arrived while the plan was executed.
        first = inner[0] if inner else len(ended)
        self._abort(ended[:first])
        stopped = {f.request for f in ended if f.reason is FinishReason.STOP}
        pruned = {f.request for f in ended if f.reason is FinishReason.PRUNED}
        self.scheduler.complete(plan, stopped, self._forks(plan, following), pruned)
        self._abort(ended[first:])

    def _abort(self, ended: Sequence[Finish]) -> None:
        for finish in ended:
            if finish.reason in _EXTERNAL:
                self.scheduler.abort(finish.request, finish.reason)

    def _forks(self, plan: StepPlan, following: StepPlan) -> dict[int, list[Request]]:
        """Return the forks by parent: new ids that share a parent's whole table."""
        forks: dict[int, list[Request]] = {}
        pool = self.scheduler.pool
        tables = {tuple(pool.table(c.request)): c.request for c in plan.chunks if c.samples}
        for op in following.ops:
            parent = tables.get(op.blocks)
            if op.kind is not OpKind.SHARE or op.request in self.known or parent is None:
                continue
            assert op.request is not None
            origin = self.known[parent]
            child = Request(
                op.request, origin.prompt_tokens, origin.max_new_tokens,
                self.child_keys.get(op.request, origin.keys), origin.priority,
            )  # fmt: skip
            self._register(child)
            forks.setdefault(parent, []).append(child)
        return forks

    def _register(self, request: Request) -> None:
        self.known[request.id] = request
