"""Continuous batching over a block pool: who runs in each step, on which blocks.

A request waits, runs, and ends. Each step, running requests come first, oldest first; what is
left of the token budget admits waiting ones, first come first served. A prompt that exceeds the
budget is computed in chunks beside the decoding of others. When no block is left for a running
request, the newest running one is preempted: it gives all its blocks back, goes to the front of
the queue and computes its tokens again later (recompute).

The scheduler counts tokens and never sees one: whoever executes a plan tells it which requests
met a stop token.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

from kvsim.blocks import BlockPool, blocks_needed
from kvsim.geometry import final_tokens
from kvsim.step import BlockOp, Chunk, Finish, FinishReason, OpKind, StepPlan


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
    """Limits of a step.

    Attributes:
        max_num_seqs: requests running at the same time.
        max_num_batched_tokens: tokens computed in one step.
        watermark_blocks: free blocks that admission leaves for requests already running.
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    watermark_blocks: int = 0

    def __post_init__(self) -> None:
        if self.max_num_seqs < 1 or self.max_num_batched_tokens < 1 or self.watermark_blocks < 0:
            raise ValueError(f"limits must be positive: {self}")


@dataclass(slots=True)
class Request:
    """What the scheduler knows of a request. Counts are tokens."""

    id: int
    prompt_tokens: int
    max_new_tokens: int
    generated: int = 0
    computed: int = 0

    @property
    def known(self) -> int:
        """Tokens whose ids are known: the prompt and what was generated so far."""
        return self.prompt_tokens + self.generated


class Scheduler:
    """Plans steps over ``pool``; see the module's description for the rules."""

    def __init__(self, pool: BlockPool, config: SchedulerConfig | None = None) -> None:
        self.pool = pool
        self.config = config or SchedulerConfig()
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._step = 0
        self._finished: list[Finish] = []
        self._freed: list[BlockOp] = []
        self._ids: set[int] = set()  # waiting or running

    @property
    def has_work(self) -> bool:
        """True while a request waits or runs, or an end has not been planned yet."""
        return bool(self._waiting or self._running or self._finished)

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

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            ValueError: no prompt token, no token to generate, or the id waits or runs already.
            RequestRefusedError: even alone it would not fit into the pool.
        """
        if request.prompt_tokens < 1 or request.max_new_tokens < 1:
            raise ValueError(f"request {request.id} needs a prompt and at least one new token")
        if request.id in self._ids:
            raise ValueError(f"request {request.id} is there already")
        final = final_tokens(request.prompt_tokens, request.max_new_tokens)
        needed = blocks_needed(final, self.pool.block_size)
        if needed > self.pool.num_blocks:
            raise RequestRefusedError(request.id, needed, self.pool.num_blocks)
        self._ids.add(request.id)
        self._waiting.append(request)

    def abort(self, request_id: int) -> bool:
        """End a waiting or running request now; its blocks are free at once.

        Returns whether there was such a request.
        """
        for queue in (self._waiting, self._running):
            for request in queue:
                if request.id == request_id:
                    queue.remove(request)
                    self._finish(request, FinishReason.ABORTED)
                    return True
        return False

    def schedule(self) -> StepPlan:
        """Plan the next step. Blocks are already handed out when it returns."""
        draft = _Draft(self.config.max_num_batched_tokens, ops=self._freed)
        finished, self._finished, self._freed = self._finished, [], []
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

    def complete(self, plan: StepPlan, stopped: Collection[int] = ()) -> tuple[Finish, ...]:
        """Take note that ``plan`` was executed; ``stopped`` met a stop token in it.

        Requests that end here give their blocks back at once; the next plan lists both. Chunks
        of requests that were aborted while the plan ran are ignored.
        """
        running = {request.id: request for request in self._running}
        before = len(self._finished)
        for chunk in plan.chunks:
            request = running.get(chunk.request)
            if request is None:
                continue
            request.computed = chunk.start + chunk.count
            if not chunk.samples:
                continue
            request.generated += 1
            if chunk.request in stopped:
                self._end_running(request, FinishReason.STOP)
            elif request.generated >= request.max_new_tokens:
                self._end_running(request, FinishReason.LENGTH)
        return tuple(self._finished[before:])

    def _continue_running(self, draft: _Draft) -> None:
        index = 0
        while index < len(self._running) and draft.budget:
            request = self._running[index]
            chunk = _next_chunk(request, draft.budget)
            if not self._make_room(request, chunk, draft):
                break  # the request itself was the newest and had to give way
            self._take(request, chunk, draft)
            index += 1

    def _admit_waiting(self, draft: _Draft) -> None:
        while self._waiting and draft.budget and len(self._running) < self.config.max_num_seqs:
            request = self._waiting[0]
            chunk = _next_chunk(request, draft.budget)
            # A lone request may use the watermark: nobody runs for whom it would be kept.
            reserve = self.config.watermark_blocks if self._running else 0
            if self._missing_blocks(request, chunk) + reserve > self.pool.num_free:
                return  # first come first served: nobody overtakes
            self._waiting.popleft()
            self._running.append(request)
            self._take(request, chunk, draft)

    def _make_room(self, request: Request, chunk: Chunk, draft: _Draft) -> bool:
        """Preempt the newest until ``chunk`` fits; False if that took ``request`` itself."""
        while self._missing_blocks(request, chunk) > self.pool.num_free:
            victim = self._running.pop()
            draft.preempted.append(victim.id)
            draft.ops.append(BlockOp(OpKind.FREE, victim.id, self.pool.free(victim.id)))
            victim.computed = 0
            self._waiting.appendleft(victim)
            if victim is request:
                return False
        return True

    def _missing_blocks(self, request: Request, chunk: Chunk) -> int:
        held = len(self.pool.table(request.id))
        return blocks_needed(chunk.start + chunk.count, self.pool.block_size) - held

    def _take(self, request: Request, chunk: Chunk, draft: _Draft) -> None:
        missing = self._missing_blocks(request, chunk)
        if missing > 0:
            blocks = self.pool.allocate(request.id, missing)
            draft.ops.append(BlockOp(OpKind.ALLOCATE, request.id, blocks))
        draft.chunks.append(chunk)
        draft.budget -= chunk.count

    def _end_running(self, request: Request, reason: FinishReason) -> None:
        self._running.remove(request)
        self._finish(request, reason)

    def _finish(self, request: Request, reason: FinishReason) -> None:
        self._ids.discard(request.id)
        self._finished.append(Finish(request.id, reason))
        if self.pool.table(request.id):
            blocks = self.pool.free(request.id)
            self._freed.append(BlockOp(OpKind.FREE, request.id, blocks))


class _Draft:
    """A plan in the making, and the token budget that is left for it."""

    def __init__(self, budget: int, ops: list[BlockOp]) -> None:
        self.budget = budget
        self.ops = ops
        self.chunks: list[Chunk] = []
        self.preempted: list[int] = []


def _next_chunk(request: Request, budget: int) -> Chunk:
    count = min(request.known - request.computed, budget)
    last = request.computed + count == request.known
    return Chunk(request.id, request.computed, count, samples=last)
