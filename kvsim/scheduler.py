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
from dataclasses import dataclass
from typing import Literal

from kvsim.blocks import BlockPool, blocks_needed
from kvsim.prefix import PrefixStats
from kvsim.queues import Policy, victim, waiting_queue
from kvsim.request import Request
from kvsim.step import BlockOp, Chunk, Finish, FinishReason, OpKind, StepPlan

__all__ = ["Request", "RequestRefusedError", "Scheduler", "SchedulerConfig"]


class RequestRefusedError(Exception):
    """The request could never run, whatever else ends: it was not queued.

    ``needed`` and ``available`` are blocks.
    """

    def __init__(self, request: int, needed: int, available: int) -> None:
        super().__init__(f"request {request} needs {needed} blocks, the pool has {available}")
        self.request = request
        self.needed = needed
        self.available = available


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits and policies.

    Attributes:
        max_num_seqs: requests running at the same time.
        max_num_batched_tokens: tokens computed in one step.
        watermark_blocks: free blocks that admission leaves for requests already running.
        policy: fcfs, or priority (priority, then arrival).
        preemption: what becomes of a victim's blocks.
        host_blocks: blocks of host memory for swapped requests; without room, recompute.
        prefix_caching: keep and find full blocks by their content.

    Raises:
        ValueError: a limit out of range, an unknown policy.
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    watermark_blocks: int = 0
    policy: Policy = "fcfs"
    preemption: Literal["recompute", "swap"] = "recompute"
    host_blocks: int = 0
    prefix_caching: bool = False

    def __post_init__(self) -> None:
        if self.max_num_seqs < 1 or self.max_num_batched_tokens < 1:
            raise ValueError(f"limits must be positive: {self}")
        if self.watermark_blocks < 0 or self.host_blocks < 0:
            raise ValueError(f"limits must not be negative: {self}")
        if self.policy not in ("fcfs", "priority"):
            raise ValueError(f"unknown policy {self.policy!r}")
        if self.preemption not in ("recompute", "swap"):
            raise ValueError(f"unknown preemption {self.preemption!r}")


class Scheduler:
    """Plans steps over ``pool``; see the module's description for the rules."""

    def __init__(self, pool: BlockPool, config: SchedulerConfig | None = None) -> None:
        self.pool = pool
        self.config = config or SchedulerConfig()
        self.stats = PrefixStats()
        host = self.config.host_blocks
        self.host = BlockPool(host, pool.block_size) if host else None
        self._waiting = waiting_queue(self.config.policy)
        self._running: list[Request] = []
        self._requests: dict[int, Request] = {}
        self._arrivals = 0
        self._step = 0
        self._finished: list[Finish] = []
        # Operations done since the last plan, in order: the next plan lists them first.
        self._pending: list[BlockOp] = []
        # Who published a block, and in which step: tells the kinds of hits apart.
        self._publisher: dict[int, tuple[int, int]] = {}

    # -- what is there ---------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """True while a request waits or runs, or something done has not been planned yet."""
        return bool(self._waiting or self._running or self._finished or self._pending)

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
        draft = _Draft(self.config.max_num_batched_tokens, ops=self._pending)
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

    def _continue_running(self, draft: _Draft) -> None:
        index = 0
        while index < len(self._running) and draft.budget:
            request = self._running[index]
            chunk = _next_chunk(request, draft.budget)
            if not self._make_room(request, chunk, draft):
                continue  # the request itself had to give way; the next one stands in its place
            self._take(request, chunk, draft)
            # A victim further up the list has moved this request down.
            index = (self._running.index(request) if draft.preempted else index) + 1

    def _admit_waiting(self, draft: _Draft) -> None:
        while self._waiting and draft.budget and len(self._running) < self.config.max_num_seqs:
            request = self._waiting.peek()
            if not (
                self._swap_in(request, draft) if request.swapped else self._start(request, draft)
            ):
                return  # nobody overtakes

    def _start(self, request: Request, draft: _Draft) -> bool:
        """Admit a request that holds nothing, with the prefix that is cached; False: no room."""
        hits = self._cached_prefix(request)
        size = self.pool.block_size
        start = len(hits) * size
        count = min(request.known - start, draft.budget)
        new = blocks_needed(start + count, size) - len(hits)
        revived = sum(map(self.pool.is_cached, hits))
        if new + self._reserve() > self.pool.num_free - revived:
            return False
        self._waiting.pop()
        self._running.append(request)
        self._count_hits(request, hits)
        if hits:
            self.pool.share(request.id, hits)
            draft.ops.append(BlockOp(OpKind.SHARE, request.id, tuple(hits), tokens=start))
        request.computed, request.published = start, len(hits)
        self._take(request, _next_chunk(request, draft.budget), draft)
        return True

    def _swap_in(self, request: Request, draft: _Draft) -> bool:
        """Bring a swapped request back with all its blocks and let it go on; False: no room."""
        assert self.host is not None
        chunk = _next_chunk(request, draft.budget)
        held = len(self.host.table(request.id))
        needed = max(blocks_needed(chunk.start + chunk.count, self.pool.block_size), held)
        if needed + self._reserve() > self.pool.num_free:
            return False
        self._waiting.pop()
        self._running.append(request)
        blocks = self._allocate(request, held, draft)
        sources = self.host.free(request.id)
        draft.ops.append(BlockOp(OpKind.SWAP_IN, request.id, blocks, sources))
        request.swapped = False
        self._take(request, chunk, draft)
        return True

    def _reserve(self) -> int:
        """Blocks that admission leaves free; a lone request may use them."""
        return self.config.watermark_blocks if self._running else 0

    def _take(self, request: Request, chunk: Chunk, draft: _Draft) -> None:
        """Give ``request`` what ``chunk`` writes to; there is room."""
        logical = chunk.start // self.pool.block_size
        table = self.pool.table(request.id)
        if logical < len(table) and self.pool.references(table[logical]) > 1:
            old, new = self.pool.copy_on_write(request.id, logical)
            self._log_evicted(draft)
            draft.ops.append(BlockOp(OpKind.COPY, request.id, (new,), (old,)))
        missing = blocks_needed(chunk.start + chunk.count, self.pool.block_size) - len(table)
        if missing > 0:
            blocks = self._allocate(request, missing, draft)
            draft.ops.append(BlockOp(OpKind.ALLOCATE, request.id, blocks))
        draft.chunks.append(chunk)
        draft.budget -= chunk.count
        self._publish(request, chunk.start + chunk.count)

    def _allocate(self, request: Request, count: int, draft: _Draft) -> tuple[int, ...]:
        blocks = self.pool.allocate(request.id, count)
        self._log_evicted(draft)
        return blocks

    def _log_evicted(self, draft: _Draft) -> None:
        evicted = self.pool.drain_evicted()
        if evicted:
            draft.ops.append(BlockOp(OpKind.EVICT, None, evicted))

    def _missing_blocks(self, request: Request, chunk: Chunk) -> int:
        """Blocks that ``chunk`` takes out of the pool: new ones, and a copy of a shared one."""
        table = self.pool.table(request.id)
        size = self.pool.block_size
        logical = chunk.start // size
        copy = logical < len(table) and self.pool.references(table[logical]) > 1
        return max(blocks_needed(chunk.start + chunk.count, size) - len(table), 0) + int(copy)

    # -- preemption ------------------------------------------------------------------------

    def _make_room(self, request: Request, chunk: Chunk, draft: _Draft) -> bool:
        """Preempt until ``chunk`` fits; False if that took ``request`` itself."""
        while self._missing_blocks(request, chunk) > self.pool.num_free:
            loser = victim(self._running, self.config.policy)
            self._preempt(loser, draft)
            if loser is request:
                return False
        return True

    def _preempt(self, request: Request, draft: _Draft) -> None:
        self._running.remove(request)
        draft.withdraw(request.id)
        request.preemptions += 1
        draft.preempted.append(request.id)
        if self._can_swap(request):
            assert self.host is not None
            hosts = self.host.allocate(request.id, len(self.pool.table(request.id)))
            draft.ops.append(self._give_back(request, OpKind.SWAP_OUT, hosts))
            request.swapped = True
        else:
            draft.ops.append(self._give_back(request, OpKind.FREE))
            request.computed = request.published = 0
        self._waiting.push_back_in(request)

    def _give_back(self, request: Request, kind: OpKind, hosts: tuple[int, ...] = ()) -> BlockOp:
        """Free the blocks of ``request``; what it published and has not written is retracted."""
        table = self.pool.table(request.id)
        for block in table[request.computed // self.pool.block_size : request.published]:
            if self._publisher.get(block, (None,))[0] == request.id:
                self.pool.retract(block)
        blocks = self.pool.free(request.id)
        kept = tuple(block for block in blocks if self.pool.is_cached(block))
        return BlockOp(kind, request.id, blocks, hosts, kept)

    def _can_swap(self, request: Request) -> bool:
        if self.config.preemption != "swap" or self.host is None or not request.computed:
            return False
        return len(self.pool.table(request.id)) <= self.host.num_free

    # -- prefix cache ----------------------------------------------------------------------

    def _cached_prefix(self, request: Request) -> list[int]:
        """Blocks that hold the beginning of ``request``; at least one token is left to compute."""
        if not self.config.prefix_caching or request.keys is None:
            return []
        return self.pool.lookup(request.keys((request.known - 1) // self.pool.block_size))

    def _publish(self, request: Request, written: int) -> None:
        """Let others find the blocks that this step fills.

        They may be found in the same step: every layer writes the keys and values of all
        requests before any of them attends.
        """
        full = written // self.pool.block_size
        if not self.config.prefix_caching or request.keys is None or full <= request.published:
            return
        table, keys = self.pool.table(request.id), request.keys(full)
        for logical in range(request.published, full):
            if self.pool.publish(table[logical], keys[logical]):
                self._publisher[table[logical]] = (request.id, self._step)
        request.published = full

    def _count_hits(self, request: Request, hits: list[int]) -> None:
        if not self.config.prefix_caching or request.keys is None:
            return
        size, stats = self.pool.block_size, self.stats
        again = request.preemptions > 0
        if again:
            stats.requeried += request.known
        else:
            stats.queried += request.known
        for block in hits:
            publisher, step = self._publisher[block]
            if again and publisher == request.id:
                stats.hit_own += size
            elif again:
                stats.hit_again += size
            elif step == self._step:
                stats.hit_batch += size
            else:
                stats.hit_cross += size

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
        if request.swapped:
            assert self.host is not None
            self.host.free(request_id)
        if self.pool.table(request_id):
            self._pending.append(self._give_back(request, OpKind.FREE))
        return True


class _Draft:
    """A plan in the making, and the token budget that is left for it."""

    def __init__(self, budget: int, ops: list[BlockOp]) -> None:
        self.budget = budget
        self.ops = ops
        self.chunks: list[Chunk] = []
        self.preempted: list[int] = []

    def withdraw(self, request: int) -> None:
        """Take back the chunk of a request that is preempted after it was planned."""
        for chunk in self.chunks:
            if chunk.request == request:
                self.chunks.remove(chunk)
                self.budget += chunk.count
                return


def _next_chunk(request: Request, budget: int) -> Chunk:
    count = min(request.known - request.computed, budget)
    last = request.computed + count == request.known
    return Chunk(request.id, request.computed, count, samples=last)
