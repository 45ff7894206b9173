"""Blocks on demand, by fast paths that tests hold equal to the engine's scheduler and pool.

arrivals ──► scheduler ──► work of a step ──► clock, ledger (kvsim.sim.fast.decode_only)
             as many as can be admitted       or several decode-only steps at once
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from kvsim.accounting.slots import SlotState
from kvsim.core.blocks import BlockPool
from kvsim.core.group import most_blocks
from kvsim.core.prefix import PrefixStats
from kvsim.core.request import Request
from kvsim.core.scheduler import Scheduler
from kvsim.core.step import BlockOp, Finish, OpKind
from kvsim.latency.clock import attoseconds
from kvsim.sim.arrivals import Shortfall
from kvsim.sim.config import SimConfig
from kvsim.sim.fast.cohort import CohortPlan, CohortScheduler
from kvsim.sim.fast.decode_only import TallyError, block_levels, decode_interval, next_blocks
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


class Blocks(Policy):
    """A pool of blocks and its scheduler."""

    names: tuple[str, ...] = PAGED_LEVELS

    def __init__(self, config: SimConfig, pool: BlockPool, scheduler: Scheduler) -> None:
        super().__init__(config)
        self.shape = config.shape
        self.pool = pool
        self._scheduler = scheduler
        self._caching = scheduler.config.prefix_caching

    def memory_shortfall(self, prompt: int, output: int) -> Shortfall | None:
        """See :class:`kvsim.sim.policies.base.Policy`."""
        needed = most_blocks(prompt, output, self.config.beams, self.shape.block_size)
        blocks = self.shape.blocks
        return Shortfall("blocks", needed, blocks) if needed > blocks else None

    @property
    def has_work(self) -> bool:
        """See :class:`kvsim.sim.policies.base.Policy`."""
        return self._scheduler.has_work

    def stats(self) -> PrefixStats | None:
        """See :class:`kvsim.sim.policies.base.Policy`."""
        return self._scheduler.stats if self._caching else None

    def pop_request(self, number: int | None = None) -> tuple[int, Request]:
        """Return the row of the longest-waiting request, and its request for the scheduler.

        Args:
            number: its id; None: the row.
        """
        arrivals = self._run.arrivals
        row = arrivals.pop()
        prompt, keys = arrivals.prompt[row], None
        if self._caching:
            ids, size = arrivals.pop_ids()
            if ids is not None and size is not None:
                keys = HashKeys(row, prompt, ids, size, self.shape.block_size)
        return row, Request(
            row if number is None else number, prompt, arrivals.output[row], keys,
            arrivals.priority[row], self.config.beams,
        )  # fmt: skip

    def transfer_time(self, ops: Sequence[BlockOp]) -> int:
        """Count the blocks that ``ops`` move between device and host; return the attoseconds."""
        out, back = (
            sum(len(op.blocks) for op in ops if op.kind is kind)
            for kind in (OpKind.SWAP_OUT, OpKind.SWAP_IN)
        )
        self._run.totals.swapped_out += out
        self._run.totals.swapped_in += back
        return transfer_time(self.config, out + back)


class Paged(Blocks):
    """Paged memory with or without a prefix cache; preemption by recompute or swap."""

    def __init__(self, config: SimConfig, scheduler: CohortScheduler | None = None) -> None:
        if scheduler is None:
            kind = RunPool if config.scheduling.prefix_caching else BlockPool
            pool = kind(config.shape.blocks, config.shape.block_size)
            scheduler = CohortScheduler(pool, config.scheduling)
        super().__init__(config, scheduler.pool, scheduler)
        self.scheduler = scheduler
        self._swap = scheduler.config.preemption == "swap"
        # One more than can be admitted, so that an empty queue means that no request waits.
        self._max_submitted = config.max_num_seqs + 1

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

    def _end(self, finished: Sequence[Finish]) -> None:
        for finish in finished:
            self._run.finish(finish.request)

    def _submit(self) -> None:
        scheduler, arrivals = self.scheduler, self._run.arrivals
        room = self._max_submitted - scheduler.num_running - scheduler.num_waiting
        while room > 0 and arrivals.waiting:
            scheduler.add(self.pop_request()[1])
            room -= 1

    def _single_step(self) -> tuple[Finish, ...]:
        run, scheduler = self._run, self.scheduler
        totals = run.totals
        work = scheduler.plan()
        duration = run.clock.step(work.step_work)
        if self._swap:
            duration += self.transfer_time(work.ops)
        totals.preempted.update(work.preempted)
        run.recorder.preempted += len(work.preempted)
        for chunk in work.chunks:
            run.started(chunk.request)
        totals.computed_tokens += work.step_work.tokens
        if self._caching:
            totals.shared_tokens = scheduler.found_late
        self._record(work, duration)
        for chunk in work.chunks:
            if chunk.samples:
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
        run, scheduler, pool = self._run, self.scheduler, self.pool
        decodes, context = scheduler.decodes()
        line = run.decode_run(decodes, context, min(steps, _MAX_FAST_FORWARD))
        allocated = scheduler.cumulative_allocations(line.steps)
        owned, cached, extra = pool.num_owned, pool.num_cached, pool.extra_references
        _, available = next_blocks(self.shape, owned, cached)
        count = bisect_right(allocated, available)
        if not count:
            return False
        del allocated[count:]
        written = (context - extra * self.shape.block_size, owned, cached)
        interval = decode_interval(
            self.shape, decodes, written, line._replace(steps=count), allocated
        )
        run.recorder.add_interval(interval, decodes, scheduler.num_waiting + run.arrivals.waiting)
        held = owned * count + sum(allocated)
        run.totals.computed_tokens += decodes * count
        run.totals.held += held
        run.totals.unshared += held + extra * count
        self._end(scheduler.jump(count))
        return True


def transfer_time(config: SimConfig, blocks: int) -> int:
    """Return the attoseconds to move ``blocks`` blocks between device and host."""
    bandwidth = config.link_bandwidth
    bytes_s = blocks * config.shape.block_bytes / bandwidth if bandwidth else 0.0
    return attoseconds(bytes_s + blocks * config.block_transfer_s)
