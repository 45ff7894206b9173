"""Continuous batching over a block pool: who runs in each step, on which blocks.

A request waits, runs, and ends. Each step, running requests come first, oldest first; what is
left of the token budget admits waiting ones in the order of the policy. A prompt that exceeds
the budget is computed in chunks beside the decoding of others. When no block is left for a
running request, one is preempted: the newest (or the least urgent) gives its blocks back and
waits again. It later computes its tokens anew (recompute), or its blocks are copied to host
memory and back (swap).

With a prefix cache, full blocks are published under keys as they are filled, and a request that
is admitted begins with the longest prefix that is there; its last known token is always
computed. Forked requests share all their blocks, and a shared block is copied when it is
written.

The scheduler counts tokens and never sees one: whoever executes a plan tells it which requests
met a stop token, and gives keys for full blocks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from kvsim.blocks import BlockPool, blocks_needed
from kvsim.draft import Draft, missing_blocks, next_chunk, take_blocks
from kvsim.limits import RequestRefusedError, SchedulerConfig
from kvsim.preemption import Preemption
from kvsim.prefix import PrefixStats
from kvsim.prefix_cache import PrefixCache
from kvsim.queues import victim, waiting_queue
from kvsim.request import Request
from kvsim.step import BlockOp, Chunk, Finish, FinishReason, OpKind, StepPlan

__all__ = ["Request", "RequestRefusedError", "Scheduler", "SchedulerConfig"]


class Scheduler:
    """Plans steps over ``pool``; see the module's description for the rules."""

    def __init__(self, pool: BlockPool, config: SchedulerConfig | None = None) -> None:
        self.pool = pool
        self.config = config or SchedulerConfig()
        self._cache = PrefixCache(pool, self.config.prefix_caching)
        self._preemption = Preemption(pool, self._cache, self.config)
        self._waiting = waiting_queue(self.config.policy)
        self._running: list[Request] = []
        self._requests: dict[int, Request] = {}
        self._arrivals = 0
        self._step = 0
        self._finished: list[Finish] = []
        # Operations done since the last plan, in order: the next plan lists them first.
        self._pending: list[BlockOp] = []

    # -- what is there ---------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """True while a request waits or runs, or something done has not been planned yet."""
        return bool(self._waiting or self._running or self._finished or self._pending)

    @property
    def stats(self) -> PrefixStats:
        """What the prefix cache found."""
        return self._cache.stats

    @property
    def host(self) -> BlockPool | None:
        """Host blocks of requests that are swapped out; None where there are none."""
        return self._preemption.host

    @property
    def waiting(self) -> tuple[int, ...]:
        """Ids of queued requests, next first."""
        return tuple(request.id for request in self._waiting)

    @property
    def running(self) -> tuple[int, ...]:
        """Ids of running requests, oldest first."""
        return tuple(request.id for request in self._running)

    def computed(self) -> dict[int, int]:
        """Positions computed, and so written, for each running request."""
        return {request.id: request.computed for request in self._running}

    # -- requests come and go --------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            ValueError: the id is in use, no prompt token, or no token to generate.
            RequestRefusedError: even alone it would not fit into the pool.
        """
        if request.id in self._requests:
            raise ValueError(f"request {request.id} is already there")
        if request.prompt_tokens < 1 or request.max_new_tokens < 1:
            raise ValueError(f"request {request.id} needs a prompt and at least one new token")
        needed = blocks_needed(request.final, self.pool.block_size)
        if needed > self.pool.num_blocks:
            raise RequestRefusedError(request.id, needed, self.pool.num_blocks)
        self._arrive(request)
        self._waiting.push(request)

    def fork(self, parent_id: int, child: Request) -> None:
        """Let ``child`` go on from where its running parent is, sharing all its blocks.

        The child's counts of tokens are set to the parent's; its ``max_new_tokens`` is its own.
        It runs at once, beyond the limit of running requests if need be.

        Raises:
            ValueError: the parent does not run, or the child's id is in use.
        """
        parent = self._requests.get(parent_id)
        if parent is None or parent not in self._running:
            raise ValueError(f"request {parent_id} does not run and cannot be forked")
        if child.id in self._requests:
            raise ValueError(f"request {child.id} is already there")
        child.prompt_tokens, child.generated = parent.prompt_tokens, parent.generated
        child.computed, child.published = parent.computed, parent.published
        blocks = self.pool.share(child.id, self.pool.table(parent_id))
        self._pending.append(BlockOp(OpKind.SHARE, child.id, blocks, tokens=child.computed))
        self._arrive(child)
        self._running.append(child)

    def abort(self, request_id: int) -> bool:
        """End a waiting or running request now; its blocks are free at once.

        Returns whether there was such a request.
        """
        return self._end(request_id, FinishReason.ABORTED)

    def finish(self, request_id: int, reason: FinishReason) -> bool:
        """End a request for a reason that the scheduler cannot know, such as a pruned beam."""
        return self._end(request_id, reason)

    # -- steps -----------------------------------------------------------------------------

    def schedule(self) -> StepPlan:
        """Plan the next step. Blocks are already handed out when it returns."""
        draft = Draft(self._step, self.config.max_num_batched_tokens, self._pending)
        finished, self._finished, self._pending = self._finished, [], []
        self._continue_running(draft)
        if not draft.preempted:
            self._admit_waiting(draft)
        plan = StepPlan(
            step=self._step,
            ops=tuple(draft.ops),
            chunks=tuple(draft.chunks),
            preempted=tuple(draft.preempted),
            finished=tuple(finished),
            waiting=len(self._waiting),
        )
        self._step += 1
        return plan

    def complete(
        self,
        plan: StepPlan,
        stopped: Collection[int] = (),
        forks: Mapping[int, Sequence[Request]] | None = None,
    ) -> tuple[Finish, ...]:
        """Take note that ``plan`` was executed; ``stopped`` met a stop token in it.

        ``forks`` are children that begin with this step's token (see :meth:`fork`). Requests
        that end here give their blocks back at once; the next plan lists both. Chunks of
        requests that were aborted while the plan ran are ignored.
        """
        before = len(self._finished)
        for chunk in plan.chunks:
            request = self._requests.get(chunk.request)
            if request is None:
                continue
            request.computed = chunk.start + chunk.count
            if not chunk.samples:
                continue
            request.generated += 1
            children = (forks or {}).get(request.id, ())
            for child in children:
                self.fork(request.id, child)
            for one in (request, *children):
                if one.id in stopped:
                    self._end(one.id, FinishReason.STOP)
                elif one.generated >= one.max_new_tokens:
                    self._end(one.id, FinishReason.LENGTH)
        return tuple(self._finished[before:])

    def _continue_running(self, draft: Draft) -> None:
        index = 0
        while index < len(self._running) and draft.budget:
            request = self._running[index]
            chunk = next_chunk(request, draft.budget)
            if not self._make_room(request, chunk, draft):
                continue  # the request itself had to give way; the next one stands in its place
            self._take(request, chunk, draft)
            # A victim further up the list has moved this request down.
            index = (self._running.index(request) if draft.preempted else index) + 1

    def _admit_waiting(self, draft: Draft) -> None:
        while self._waiting and draft.budget and len(self._running) < self.config.max_num_seqs:
            request = self._waiting.peek()
            if not (
                self._swap_in(request, draft) if request.swapped else self._start(request, draft)
            ):
                return  # nobody overtakes

    def _start(self, request: Request, draft: Draft) -> bool:
        """Admit a request that holds nothing, with the prefix that is cached; False: no room."""
        hits = self._cache.find(request)
        size = self.pool.block_size
        start = len(hits) * size
        count = min(request.known - start, draft.budget)
        new = blocks_needed(start + count, size) - len(hits)
        revived = sum(map(self.pool.is_cached, hits))
        if new + self._reserve() > self.pool.num_free - revived:
            return False
        self._waiting.pop()
        self._running.append(request)
        self._cache.count(request, hits, draft.step)
        if hits:
            self.pool.share(request.id, hits)
            draft.ops.append(BlockOp(OpKind.SHARE, request.id, tuple(hits), tokens=start))
        request.computed, request.published = start, len(hits)
        self._take(request, next_chunk(request, draft.budget), draft)
        return True

    def _swap_in(self, request: Request, draft: Draft) -> bool:
        """Bring a swapped request back with all its blocks and let it go on; False: no room."""
        assert self.host is not None
        chunk = next_chunk(request, draft.budget)
        held = len(self.host.table(request.id))
        needed = max(blocks_needed(chunk.start + chunk.count, self.pool.block_size), held)
        if needed + self._reserve() > self.pool.num_free:
            return False
        self._waiting.pop()
        self._running.append(request)
        self._preemption.swap_in(request, draft)
        self._take(request, chunk, draft)
        return True

    def _reserve(self) -> int:
        """Blocks that admission leaves free; a lone request may use them."""
        return self.config.watermark_blocks if self._running else 0

    def _take(self, request: Request, chunk: Chunk, draft: Draft) -> None:
        """Plan ``chunk`` with the blocks that it writes to; there is room."""
        take_blocks(self.pool, chunk, draft)
        draft.compute(chunk)
        self._cache.publish(request, chunk.start + chunk.count, draft.step)

    # -- preemption ------------------------------------------------------------------------

    def _make_room(self, request: Request, chunk: Chunk, draft: Draft) -> bool:
        """Preempt until ``chunk`` fits; False if that took ``request`` itself."""
        while missing_blocks(self.pool, chunk) > self.pool.num_free:
            loser = victim(self._running, self.config.policy)
            self._running.remove(loser)
            self._preemption.preempt(loser, draft)
            self._waiting.push_back_in(loser)
            if loser is request:
                return False
        return True

    # -- ends ------------------------------------------------------------------------------

    def _arrive(self, request: Request) -> None:
        request.arrival = self._arrivals
        self._arrivals += 1
        self._requests[request.id] = request

    def _end(self, request_id: int, reason: FinishReason) -> bool:
        request = self._requests.pop(request_id, None)
        if request is None:
            return False
        if request in self._running:
            self._running.remove(request)
        else:
            self._waiting.remove(request)
        self._finished.append(Finish(request_id, reason))
        if request.swapped and self.host is not None:
            self.host.free(request_id)
        if self.pool.table(request_id):
            self._pending.append(self._preemption.give_back(request))
        return True
