"""Continuous batching over a block pool.

In each step, running requests come first, oldest first. The remaining token budget admits waiting
requests in the order of the policy. A prompt that exceeds the budget is computed in chunks
(chunked prefill). When a running request needs a block and none is free, the newest (or lowest
priority) one is preempted by recompute or swap.

With a prefix cache, full blocks are published under keys, and an admitted request starts with its
longest cached prefix; its last known token is always computed. Forked requests share all their
blocks, and a shared block is copied before it is written. The beams of a beam search are forks
that are scheduled as one (see :mod:`kvsim.core.group`).

The scheduler counts tokens and never sees one. The engine reports which requests sampled a stop
token and provides the keys of full blocks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from kvsim.core.blocks import BlockPool
from kvsim.core.draft import Draft, missing_blocks, release_blocks
from kvsim.core.group import SequenceGroup, enqueue, most_blocks, victim
from kvsim.core.limits import RequestRefusedError, SchedulerConfig
from kvsim.core.placement import Placement
from kvsim.core.preemption import Preemption
from kvsim.core.prefix import PrefixCache, PrefixStats
from kvsim.core.request import Request
from kvsim.core.step import (
    BlockOp,
    Chunk,
    Finish,
    FinishReason,
    OpKind,
    StepPlan,
    Wait,
    WaitReason,
)

__all__ = ["Request", "RequestRefusedError", "Scheduler", "SchedulerConfig"]


class Scheduler:
    """Plans steps over ``pool`` by the rules above."""

    def __init__(self, pool: BlockPool, config: SchedulerConfig | None = None) -> None:
        self.pool = pool
        self.config = config or SchedulerConfig()
        self._cache = PrefixCache(pool, self.config.prefix_caching)
        self._preemption = Preemption(pool, self._cache, self.config)
        self._placement = Placement(pool, self._cache, self._preemption)
        self._waiting: list[SequenceGroup] = []  # the next one to be admitted first
        self._running: list[SequenceGroup] = []
        self._requests: dict[int, Request] = {}
        self._groups: dict[int, SequenceGroup] = {}
        self._arrivals = 0
        self._step = 0
        # Steps with a chunk, and how many there were after the last one that prefilled.
        self._executed = 0
        self._last_prefill = -self.config.prefill_schedule_interval
        # The last step that admitted requests left some waiting.
        self._prefills_queue = False
        # Why the first in the queue waits, from the last plan with a wait.
        self._wait: Wait | None = None
        self._finished: list[Finish] = []
        # Operations since the last plan, in order; the next plan lists them first.
        self._pending: list[BlockOp] = []

    # -- state -----------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether a request waits or runs, or finished requests are not in a plan yet."""
        return bool(self._waiting or self._running or self._finished or self._pending)

    @property
    def stats(self) -> PrefixStats:
        """Counters of the prefix cache."""
        return self._cache.stats

    @property
    def found_late(self) -> int:
        """Prefix hits after a preemption beyond what the request had computed; tokens."""
        return self._cache.found_late

    @property
    def host(self) -> BlockPool | None:
        """Pool of host blocks for swapping; None without one."""
        return self._preemption.host

    @property
    def waiting(self) -> tuple[int, ...]:
        """Ids of queued requests, next one first."""
        return tuple(member.id for group in self._waiting for member in group.members)

    @property
    def running(self) -> tuple[int, ...]:
        """Ids of running requests, oldest first."""
        return tuple(member.id for group in self._running for member in group.members)

    def computed(self) -> dict[int, int]:
        """Return the computed positions of each running request."""
        return {m.id: m.computed for group in self._running for m in group.members}

    # -- requests --------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Queue a request; with ``beams`` above 1, the first of that many beams.

        Raises:
            ValueError: the id is in use, or it has no prompt token or no token to generate.
            RequestRefusedError: it would not fit even alone, with all its beams diverging at the
                first token.
        """
        if request.id in self._requests:
            raise ValueError(f"request {request.id} is already there")
        if min(request.prompt_tokens, request.max_new_tokens, request.beams) < 1:
            raise ValueError(f"request {request.id} needs a prompt, a beam and a new token")
        self._refuse_if_too_large(request)
        enqueue(self._waiting, self._arrive(request), self.config.policy)

    def fork(self, parent_id: int, child: Request) -> None:
        """Continue ``child`` from its running parent, sharing all its blocks.

        Sets the child's token counts to the parent's; its ``max_new_tokens`` is its own. It runs
        at once, even beyond ``max_num_seqs``. The fork of a beam joins the same search.

        Raises:
            ValueError: the parent does not run, the child's id is in use, or the search has all
                its beams or uncomputed ones.
        """
        parent, group = self._requests.get(parent_id), self._groups.get(parent_id)
        if parent is None or group not in self._running:
            raise ValueError(f"request {parent_id} does not run and cannot be forked")
        if child.id in self._requests:
            raise ValueError(f"request {child.id} is already there")
        if group.width > 1 and (len(group.members) == group.width or not group.is_caught_up):
            raise ValueError(f"request {parent_id} cannot be forked into one more beam now")
        child.prompt_tokens, child.generated = parent.prompt_tokens, parent.generated
        child.computed, child.published = parent.computed, parent.published
        blocks = tuple(self.pool.share(child.id, self.pool.table(parent_id), (parent_id,)))
        self._pending.append(BlockOp(OpKind.SHARE, child.id, blocks, tokens=child.computed))
        if group.width > 1:
            self._arrive(child, group)
        else:
            self._running.append(self._arrive(child))

    def abort(self, request_id: int, reason: FinishReason = FinishReason.ABORTED) -> bool:
        """End a waiting or running request and free its blocks now.

        Ends all beams of its search. Returns whether the request existed.
        """
        group = self._groups.get(request_id)
        if group is None:
            return False
        for member in tuple(group.members):
            self._end(member, reason)
        return True

    def reset_prefix_cache(self) -> bool:
        """Drop all cached content, as after a change of weights; the next plan lists it as evicted.

        Returns False and does nothing while a request has blocks. Counters are kept.
        """
        cached = self.pool.cached
        if not self.pool.reset_cache():
            return False
        if cached:
            self._pending.append(BlockOp(OpKind.EVICT, None, cached))
        return True

    # -- steps -----------------------------------------------------------------------------

    def schedule(self) -> StepPlan:
        """Plan the next step and allocate its blocks."""
        draft = self._draft()
        finished, self._finished, self._pending = self._finished, [], []
        self._continue_running(draft)
        wait: Wait | None
        if draft.preempted:
            wait = Wait(self._waiting[0].members[0].id, WaitReason.PREEMPTION)
        else:
            wait = self._admit_waiting(draft)
            if not draft.defer_prefills:
                self._prefills_queue = bool(self._waiting)
        self._executed += bool(draft.chunks)
        if draft.prefills:
            self._last_prefill = self._executed
        plan = StepPlan(
            step=self._step,
            ops=tuple(draft.ops),
            chunks=tuple(draft.chunks),
            preempted=tuple(draft.preempted),
            finished=tuple(finished),
            waiting=len(self._waiting),
            causes=tuple(draft.causes),
            wait=wait if wait and (not self._wait or wait[:2] != self._wait[:2]) else None,
        )
        self._wait = wait
        self._step += 1
        return plan

    def complete(
        self,
        plan: StepPlan,
        stopped: Collection[int] = (),
        forks: Mapping[int, Sequence[Request]] | None = None,
        pruned: Collection[int] = (),
    ) -> tuple[Finish, ...]:
        """Record that ``plan`` was executed; requests in ``stopped`` sampled a stop token.

        ``forks`` are children that start with this step's token (see :meth:`fork`), ``pruned``
        beams without a continuation. Requests that end here free their blocks now; the next plan
        lists both. Chunks of requests aborted meanwhile are ignored.
        """
        before = len(self._finished)
        sampled = self._note_chunks(plan.chunks)
        # End beams first: that makes room in their search for new ones.
        for request in sampled:
            if request.id in pruned:
                self._end(request, FinishReason.PRUNED)
            elif request.beams > 1 and request.id in stopped:
                self._end(request, FinishReason.STOP)
        for request in sampled:
            if request.id not in self._requests:
                continue
            children = (forks or {}).get(request.id, ())
            for child in children:
                self.fork(request.id, child)
            for one in (request, *children):
                if one.id in stopped:
                    self._end(one, FinishReason.STOP)
                elif one.generated >= one.max_new_tokens:
                    self._end(one, FinishReason.LENGTH)
        return tuple(self._finished[before:])

    def _draft(self) -> Draft:
        """Return an empty plan; long prefills are capped while there are other requests."""
        config, count = self.config, len(self._groups)
        cap = None
        if config.long_prefill_token_threshold and count > 1:
            cap = config.long_prefill_token_threshold
            if config.long_prefill_token_threshold_adaptive:
                cap = max(cap, config.max_num_batched_tokens // count)
        return Draft(self._step, config.token_budget, self._pending, cap, self._defers_prefills())

    def _defers_prefills(self) -> bool:
        interval = self.config.prefill_schedule_interval
        return (
            interval > 1
            and not self._prefills_queue
            and self._executed + 1 - self._last_prefill < interval
            and any(not m.is_prefill_chunk for group in self._running for m in group.members)
        )

    def _note_chunks(self, chunks: Sequence[Chunk]) -> list[Request]:
        """Count the computed tokens; return the requests with a new token."""
        sampled = []
        for chunk in chunks:
            request = self._requests.get(chunk.request)
            if request is None:
                continue
            request.computed = chunk.start + chunk.count
            request.is_prefill_chunk = not chunk.samples
            if chunk.samples:
                request.generated += 1
                sampled.append(request)
        return sampled

    def _continue_running(self, draft: Draft) -> None:
        index = 0
        while index < len(self._running) and draft.budget:
            group = self._running[index]
            if not self._advance(group, draft):
                if self.config.scheduler == "vllm-0.32":
                    return
                continue  # the group itself was preempted; the next one is at this index
            # A preemption further up the list has moved this group down.
            index = (self._running.index(group) if draft.preempted else index) + 1

    def _admit_waiting(self, draft: Draft) -> Wait | None:
        """Admit waiting requests in order; return why the first that is left waits."""
        free_seqs = self.config.active_seqs - self._running_width()
        while self._waiting:
            group = self._waiting[0]
            if not draft.budget:
                return Wait(group.members[0].id, WaitReason.TOKENS)
            if free_seqs < group.width:
                return Wait(group.members[0].id, WaitReason.SEQS, group.width, max(0, free_seqs))
            free_seqs -= group.width
            # The only group may use the watermark blocks.
            reserve = self.config.watermark_blocks if self._running else 0
            if wait := self._placement.admit(group, draft, reserve):
                return wait  # no request overtakes the head of the queue
            self._waiting.pop(0)
            self._running.append(group)
            self._advance(group, draft)
        return None

    def _advance(self, group: SequenceGroup, draft: Draft) -> bool:
        return self._placement.advance(group, draft, self._make_room)

    def _make_room(self, group: SequenceGroup, chunks: Sequence[Chunk], draft: Draft) -> bool:
        """Preempt until ``chunks`` fit; False if ``group`` itself was preempted."""
        while (missing := missing_blocks(self.pool, chunks)) > self.pool.num_free:
            preempted = victim(self._running, self.config.policy)
            self._running.remove(preempted)
            self._preemption.preempt(preempted, draft, group.members[0].id, missing)
            enqueue(self._waiting, preempted, self.config.policy, preempted=True)
            if preempted is group:
                return False
        return True

    def _running_width(self) -> int:
        """Count running requests; a beam search counts as its width."""
        return sum(group.width for group in self._running)

    # -- end of requests -------------------------------------------------------------------

    def _refuse_if_too_large(self, request: Request) -> None:
        size, config, beams = self.pool.block_size, self.config, request.beams
        needed = most_blocks(request.prompt_tokens, request.max_new_tokens, beams, size)
        if needed > self.pool.num_blocks:
            raise RequestRefusedError(request.id, needed, self.pool.num_blocks)
        if beams > config.active_seqs:
            raise RequestRefusedError(request.id, beams, config.active_seqs, "seqs")
        if beams > config.token_budget:
            raise RequestRefusedError(request.id, beams, config.token_budget, "tokens")

    def _arrive(self, request: Request, group: SequenceGroup | None = None) -> SequenceGroup:
        request.arrival = self._arrivals
        self._arrivals += 1
        if group is None:
            group = SequenceGroup([], request.beams, request.rank)
        group.members.append(request)
        request.beams = group.width
        self._requests[request.id], self._groups[request.id] = request, group
        return group

    def _end(self, request: Request, reason: FinishReason) -> None:
        del self._requests[request.id]
        group = self._groups.pop(request.id)
        group.members.remove(request)
        if not group.members:
            (self._running if group in self._running else self._waiting).remove(group)
        self._finished.append(Finish(request.id, reason))
        if request.swapped and self.host is not None:
            self.host.free(request.id)
        if self.pool.table(request.id):
            self._release(request)

    def _release(self, request: Request) -> None:
        self._pending.append(release_blocks(self._cache, request))
