"""Blocks on demand, by fast paths that tests hold equal to the engine's scheduler and pool.

arrivals ──► scheduler ──► work of a step ──► clock, ledger (kvsim.sim.fast.decode_only)
             as many as can be admitted       or several decode-only steps at once
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from kvsim.accounting.slots import PoolShape, SlotState
from kvsim.core.blocks import BlockPool, blocks_needed
from kvsim.core.prefix import PrefixStats
from kvsim.core.request import Request, final_tokens
from kvsim.core.step import Finish
from kvsim.latency.clock import DecodeRun, attoseconds
from kvsim.sim.arrivals import ArrivalQueue, Shortfall
from kvsim.sim.config import SimConfig
from kvsim.sim.fast.cohort import CohortPlan, CohortScheduler
from kvsim.sim.fast.decode_only import DecodeOnlyPool, TallyError, block_levels
from kvsim.sim.fast.run_pool import RunPool
from kvsim.sim.policies.base import Policy
from kvsim.traces.hash_keys import HashKeys

PAGED_LEVELS = (
    SlotState.LIVE.value,
    SlotState.CACHED.value,
    SlotState.UNWRITTEN.value,
    SlotState.WATERMARK.value,
    SlotState.FREE.value,
)
# Most decode-only steps per fast-forward.
_MAX_FAST_FORWARD = 64


def blocks_shortfall(
    shape: PoolShape, prompt: int, output: int, sequences: int = 1
) -> Shortfall | None:
    """Return why a request does not fit into the empty pool, or None."""
    size = shape.block_size
    shared = prompt // size if sequences > 1 else 0
    needed = shared + sequences * (blocks_needed(final_tokens(prompt, output), size) - shared)
    return Shortfall("blocks", needed, shape.blocks) if needed > shape.blocks else None


def block_keys(arrivals: ArrivalQueue, row: int, block_size: int) -> HashKeys | None:
    """Return the keys of the popped request's full blocks; None without hash ids."""
    ids, size = arrivals.pop_ids()
    if ids is None or size is None:
        return None
    return HashKeys(row, arrivals.prompt[row], ids, size, block_size)


class Paged(Policy):
    """Paged memory with or without a prefix cache; preemption by recompute or swap."""

    names = PAGED_LEVELS

    def __init__(self, config: SimConfig) -> None:
        super().__init__(config)
        self.shape: PoolShape = config.shape
        self._swap = config.scheduling.preemption == "swap"
        self._caching = config.scheduling.prefix_caching
        kind = RunPool if self._caching else BlockPool
        self.pool = kind(self.shape.blocks, self.shape.block_size)
        self.scheduler = CohortScheduler(self.pool, config.scheduling)
        # One more than can be admitted, so that an empty queue means that no request waits.
        self._max_submitted = config.max_num_seqs + 1

    def memory_shortfall(self, prompt: int, output: int) -> Shortfall | None:
        """See :class:`kvsim.sim.policies.base.Policy`."""
        return blocks_shortfall(self.shape, prompt, output)

    @property
    def has_work(self) -> bool:
        """See :class:`kvsim.sim.policies.base.Policy`."""
        return self.scheduler.has_work

    def levels(self) -> tuple[int, ...]:
        """See :class:`kvsim.sim.policies.base.Policy`."""
        return block_levels(self.shape, 0, self.pool.num_owned, self.pool.num_cached)

    def step(self) -> None:
        """See :class:`kvsim.sim.policies.base.Policy`."""
        scheduler, run = self.scheduler, self._run
        if run.arrivals.waiting:
            self._submit()
        if not run.jump or not self._fast_forward(scheduler.decode_only_steps()):
            self._end(self._single_step())
            return
        arrivals, recorder = run.arrivals, run.recorder
        while arrivals.next_arrival_at is None or arrivals.next_arrival_at > recorder.now:
            if not self._fast_forward(scheduler.decode_only_steps()):
                return

    def stats(self) -> PrefixStats | None:
        """See :class:`kvsim.sim.policies.base.Policy`."""
        return self.scheduler.stats if self._caching else None

    def _end(self, finished: Sequence[Finish]) -> None:
        for finish in finished:
            self._run.finish(finish.request)

    def _submit(self) -> None:
        scheduler, arrivals = self.scheduler, self._run.arrivals
        room = self._max_submitted - scheduler.num_running - scheduler.num_waiting
        while room > 0 and arrivals.waiting:
            row = arrivals.pop()
            prompt, output = arrivals.prompt[row], arrivals.output[row]
            keys = block_keys(arrivals, row, self.shape.block_size) if self._caching else None
            scheduler.add(Request(row, prompt, output, keys))
            room -= 1

    def _single_step(self) -> tuple[Finish, ...]:
        run, scheduler = self._run, self.scheduler
        arrivals, totals = run.arrivals, run.totals
        work = scheduler.plan()
        duration = run.clock.step(work.step_work)
        if self._swap:
            moved = totals.count_swaps(work.ops)
            duration += transfer_time(self.config, self.shape, moved)
        for request in work.preempted:
            totals.preempted[request] += 1
        run.recorder.preempted += len(work.preempted)
        for chunk in work.chunks:
            if arrivals.scheduled[chunk.request] != arrivals.scheduled[chunk.request]:
                run.started(chunk.request)
        totals.computed_tokens += work.step_work.tokens
        if self._caching:
            totals.shared_tokens = scheduler.found_late
        self._record(work, duration)
        for chunk in work.chunks:
            first = arrivals.first_token[chunk.request]
            if chunk.samples and first != first:
                run.first_token(chunk.request)
        return scheduler.commit(work)

    def _record(self, work: CohortPlan, duration: int) -> None:
        """Record the levels and block-steps of a step.

        Raises:
            TallyError: running requests own more blocks than they have written to.
        """
        run, running, pool = self._run, self.scheduler.num_running, self.pool
        size, owned, extra = self.shape.block_size, pool.num_owned, pool.extra_references
        live = work.logical_tokens - extra * size
        levels = block_levels(self.shape, live, owned, pool.num_cached)
        if levels[2] > running * (size - 1):
            raise TallyError(f"{levels[2]} unwritten slots of {running} running requests")
        run.totals.held += owned
        run.totals.unshared += owned + extra
        run.recorder.step(levels, running, work.waiting + run.arrivals.waiting, duration)

    def _fast_forward(self, steps: int) -> bool:
        """Fast-forward over up to ``steps`` decode-only steps; False if none is possible.

        They end at the next arrival or series point at the latest, and are recorded as if done
        one by one.
        """
        if not steps:
            return False
        run, scheduler, size = self._run, self.scheduler, self.shape.block_size
        decodes, context = scheduler.decodes()
        part = run.clock.decode_run(decodes, context, min(steps, _MAX_FAST_FORWARD))
        part = part.until(run.horizon())
        allocated = scheduler.cumulative_allocations(part.steps)
        owned, cached = self.pool.num_owned, self.pool.num_cached
        extra = self.pool.extra_references
        free, live = self.shape.blocks - owned - cached, context - extra * size
        pool = DecodeOnlyPool(self.shape, decodes, owned, cached, free, live)
        waiting = scheduler.num_waiting + run.arrivals.waiting
        count = bisect_right(allocated, pool.room)
        if not count:
            return False
        if count < part.steps:
            part = DecodeRun(count, part.first, part.slope)
            del allocated[count:]
        interval = pool.interval(part, allocated)
        run.recorder.add_interval(interval, decodes, waiting)
        run.totals.computed_tokens += decodes * count
        run.totals.held += interval.held
        run.totals.unshared += interval.held + extra * count
        self._end(scheduler.jump(count))
        return True


def transfer_time(config: SimConfig, shape: PoolShape, blocks: int) -> int:
    """Return the attoseconds to move ``blocks`` blocks between device and host."""
    bandwidth = config.link_bandwidth
    bytes_s = blocks * shape.block_bytes / bandwidth if bandwidth else 0.0
    return attoseconds(bytes_s + blocks * config.block_transfer_s)
