"""The scheduler's plans in time proportional to their changes, for simulations of long traces.

Most requests repeat the previous step: they compute one token into a block that they have. These
form the cohort, of which only totals are kept. A calendar lists which members need a block or end
at which tick.

    tick             17   18   19   20  ...       one for each step
    needs a block    -    r3   -    r1, r7        by the tick modulo the block size
    ends             r7   -    -    r2            by the tick

Admission, prefill and preemption are the scheduler's own code; before a preemption the cohort is
dissolved into plain requests. A property test compares the plans with the scheduler's, block for
block.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from heapq import heappop, heappush
from itertools import accumulate, chain, repeat
from operator import itemgetter, mod
from typing import NamedTuple

from kvsim.core.blocks import BlockPool
from kvsim.core.draft import Draft, missing_blocks
from kvsim.core.group import SequenceGroup
from kvsim.core.limits import SchedulerConfig
from kvsim.core.request import Request
from kvsim.core.scheduler import Scheduler
from kvsim.core.step import BlockOp, Chunk, Finish, FinishReason, StepPlan
from kvsim.latency.roofline import StepWork
from kvsim.traces.hash_keys import HashKeys


def forms_cohort(config: SchedulerConfig) -> bool:
    """Whether every step has a token for each running request, whoever arrives or prefills."""
    one_order = config.policy == "fcfs" and config.prefill_schedule_interval == 1
    return one_order and config.token_budget >= config.active_seqs


class CohortPlan(NamedTuple):
    """A planned step. ``chunks`` are those of requests outside the cohort.

    ``ops``, ``preempted`` and ``waiting`` are as in a StepPlan. ``logical_tokens``
    are the positions written by running requests after the step; shared ones count for each.
    """

    chunks: tuple[Chunk, ...]
    step_work: StepWork
    logical_tokens: int
    ops: tuple[BlockOp, ...]
    preempted: tuple[int, ...]
    waiting: int


class _Member(NamedTuple):
    """A member of the cohort: its rank among running requests, and its state when it joined."""

    number: int
    tick: int
    computed: int
    generated: int


class CohortScheduler(Scheduler):
    """A :class:`Scheduler` stepped by :meth:`plan` and :meth:`commit`, for known output lengths.

    Plans list the operations of preemption and swapping only: copies of long tables would take
    longer than all else.

    Args:
        config: one that :func:`forms_cohort` accepts.
    """

    def __init__(self, pool: BlockPool, config: SchedulerConfig | None = None) -> None:
        super().__init__(pool, config)
        self._tick = 0
        self._members: dict[int, _Member] = {}
        # Member ids and their numbers, by the tick (modulo the block size) at which they need a
        # block; in the order of joining, i.e. of the numbers. A slab's block size may be millions.
        self._crossing: dict[int, dict[int, int]] = {}
        # The same, for members that publish their blocks as they fill.
        self._filling: dict[int, dict[int, int]] = {}
        self._ends: dict[int, dict[int, int]] = {}
        self._next_ends: list[int] = []  # a heap of its ticks
        self._others: list[SequenceGroup] = []  # running, not in the cohort
        self._context = 0  # positions computed by the cohort
        self._next_number = 0
        self._plain: StepPlan | None = None  # a plan of the base class being executed
        # No waiting request can be admitted before another one ends.
        self._stalled = False

    @property
    def num_running(self) -> int:
        """Number of running requests."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Number of queued requests."""
        return len(self._waiting)

    @property
    def next_waiting(self) -> int | None:
        """The queued request that is admitted next; None: none waits."""
        return self._waiting[0].members[0].id if self._waiting else None

    # -- decode-only steps -----------------------------------------------------------------

    def decode_only_steps(self) -> int:
        """Return how many decode-only steps follow, blocks permitting.

        None of them has a chunk outside the cohort or admits a request; requests end only after
        the last one. If 0, the next step needs :meth:`plan`.
        """
        if self._others or not self._members:
            return 0
        if self._waiting and (self._finished or not self._stalled):
            return 0
        return self._next_ends[0] - self._tick

    def cumulative_allocations(self, steps: int) -> list[int]:
        """Return the cumulative blocks that each of ``steps`` steps needs."""
        return list(accumulate(map(len, self._crossing_rows(steps))))

    def decodes(self) -> tuple[int, int]:
        """Return the number of cohort members, and the positions that they have written."""
        return len(self._members), self._context

    def jump(self, steps: int) -> tuple[Finish, ...]:
        """Execute ``steps`` >= 1 steps, whose blocks of :meth:`cumulative_allocations` are free.

        No plan lists their allocations, nor the ends that this or :meth:`commit` returned.
        """
        if self._finished or self._pending:
            self._finished, self._pending = [], []
        if self._filling:
            for _ in range(steps):
                self._change_members()
                self._step += 1
                self._tick += 1
        else:
            self.pool.append(list(chain.from_iterable(self._crossing_rows(steps))))
            self._step += steps
            self._tick += steps
        self.pool.drain_evicted()
        self._context += steps * len(self._members)
        if self._tick < self._next_ends[0]:
            return ()
        self._end_members()
        return tuple(self._finished)

    def _crossing_rows(self, steps: int) -> Iterable[Collection[int]]:
        """The members that need a block in each of the next ``steps`` steps."""
        phases = map(mod, range(self._tick, self._tick + steps), repeat(self.pool.block_size))
        return map(self._crossing.get, phases, repeat(()))

    # -- single steps ----------------------------------------------------------------------

    def plan(self) -> CohortPlan:
        """Plan the next step and allocate its blocks."""
        return self._plan_cohort() if self._can_plan_cohort() else self._plan_without_cohort()

    def commit(self, work: CohortPlan) -> tuple[Finish, ...]:
        """Record that ``work`` was executed; free the blocks of ended requests."""
        before = len(self._finished)
        if self._plain is not None:
            self.complete(self._plain)
            self._plain = None
            self._form_cohort()
        else:
            self._tick += 1
            self._end_members()
            self._commit_others(work)
        return tuple(self._finished[before:])

    def _can_plan_cohort(self) -> bool:
        """Whether no preemption is needed, and only the newest request is outside the cohort."""
        others = self._others
        if others and (len(others) > 1 or self._running[-1] is not others[0]):
            return False
        size, free = self.pool.block_size, self.pool.num_free
        needed = len(self._crossing.get(self._tick % size, ()))
        if others and needed + self.config.max_num_batched_tokens // size + 2 > free:
            draft = self._draft()
            draft.budget -= len(self._members)
            if draft.budget:
                chunks = others[0].chunks(draft.budget, draft.allowance)
                needed += missing_blocks(self.pool, chunks)
        return needed <= free

    def _plan_cohort(self) -> CohortPlan:
        draft = self._draft()
        self._finished, self._pending = [], []
        decodes, context = len(self._members), self._context
        draft.budget -= decodes
        self._context += decodes
        self._change_members()
        if draft.budget and self._others:
            self._advance(self._others[0], draft)
        before = len(self._running)
        if self._waiting:
            self._admit_waiting(draft)
        self._stalled = bool(self._waiting) and not draft.chunks
        self._others += self._running[before:]
        self._step += 1
        return self._work(draft, decodes, context)

    def _plan_without_cohort(self) -> CohortPlan:
        self._dissolve_cohort()
        self._stalled = False
        plan = self._plain = self.schedule()
        self._others = list(self._running)
        return self._work(plan, 0, 0)

    def _work(self, plan: StepPlan | Draft, decodes: int, context: int) -> CohortPlan:
        # Each member reads its written positions and the token that it writes.
        read = pairs = context + decodes
        prefill = 0
        logical = self._context
        for group in self._others:
            logical += group.members[0].computed
        for chunk in plan.chunks:
            request = self._requests[chunk.request]
            logical += chunk.count
            read += chunk.start + chunk.count
            pairs += chunk.count * chunk.start + chunk.count * (chunk.count + 1) // 2
            if request.generated and chunk.start == request.known - 1:
                decodes += 1
            else:
                prefill += chunk.count
        self.pool.drain_evicted()  # not listed among the operations
        return CohortPlan(
            chunks=tuple(plan.chunks),
            step_work=StepWork(prefill, decodes, read, pairs),
            logical_tokens=logical,
            ops=tuple(plan.ops),
            preempted=tuple(plan.preempted),
            waiting=len(self._waiting),
        )

    def _change_members(self) -> None:
        """Allocate the blocks that members need in this step; publish those that they fill."""
        size = self.pool.block_size
        needing = self._crossing.get(self._tick % size, {})
        filling = self._filling.get((self._tick + 1) % size, {})
        if not filling:
            self.pool.append(list(needing))
            return
        for request, _ in sorted({**needing, **filling}.items(), key=itemgetter(1)):
            if request in needing:
                self.pool.append((request,))
            if request in filling:
                self._publish_member(request)

    def _draft(self) -> Draft:
        draft = super()._draft()
        draft.list_ops = False
        return draft

    def _release(self, request: Request) -> None:
        self._cache.retract_unwritten(request)
        self.pool.release(request.id)

    def _running_width(self) -> int:
        return len(self._running)

    def _publish_member(self, request: int) -> None:
        self._cache.publish(self._requests[request], self._written(request) + 1, self._step)

    def _end_members(self) -> None:
        ending = self._ends.pop(self._tick, None)
        if ending is None:
            return
        heappop(self._next_ends)
        for request in tuple(ending):
            self._end(self._leave(request), FinishReason.LENGTH)

    def _commit_others(self, work: CohortPlan) -> None:
        for request in self._note_chunks(work.chunks):
            group = self._groups[request.id]
            self._others.remove(group)
            if request.generated >= request.max_new_tokens:
                self._end(request, FinishReason.LENGTH)
            else:
                self._join(group)

    # -- joining and leaving the cohort ----------------------------------------------------

    def _form_cohort(self) -> None:
        """Build the cohort from decoding requests; others stay outside."""
        self._others = []
        self._next_number = 0
        for group in self._running:
            if group.is_caught_up and group.members[0].generated:
                self._join(group)
            else:
                self._others.append(group)

    def _dissolve_cohort(self) -> None:
        for request in tuple(self._members):
            self._leave(request)

    def _join(self, group: SequenceGroup) -> None:
        request, tick = group.members[0], self._tick
        number, request_id = self._next_number, request.id
        self._next_number += 1
        self._members[request_id] = _Member(number, tick, request.computed, request.generated)
        self._context += request.computed
        crossing = (tick - request.computed) % self.pool.block_size
        self._crossing.setdefault(crossing, {})[request_id] = number
        if self.config.prefix_caching and not _publishes_late(request):
            self._filling.setdefault(crossing, {})[request_id] = number
        end = self._end_of(request, tick)
        if end not in self._ends:
            self._ends[end] = {}
            heappush(self._next_ends, end)
        self._ends[end][request_id] = number

    def _leave(self, request_id: int) -> Request:
        request, member = self._requests[request_id], self._members.pop(request_id)
        crossing = (member.tick - member.computed) % self.pool.block_size
        for rows in (self._crossing, self._filling):
            row = rows.get(crossing, {})
            row.pop(request_id, None)
            if not row:
                rows.pop(crossing, None)
        ends = self._end_of(request, member.tick)  # its counts are those at joining
        if ends in self._ends:
            del self._ends[ends][request_id]
        steps = self._tick - member.tick
        request.computed = member.computed + steps
        request.generated = member.generated + steps
        self._context -= request.computed
        if _publishes_late(request):
            self._cache.publish(request, request.computed, self._step)
        return request

    def _written(self, request_id: int) -> int:
        member = self._members[request_id]
        return member.computed + self._tick - member.tick

    @staticmethod
    def _end_of(request: Request, tick: int) -> int:
        return tick + request.max_new_tokens - request.generated


def _publishes_late(request: Request) -> bool:
    """Whether blocks filled by decoding may be published when the request leaves the cohort.

    A trace has no keys for generated tokens, so only the request itself can find these blocks,
    after a preemption.
    """
    return isinstance(request.keys, HashKeys)
