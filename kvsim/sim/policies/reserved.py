"""Orca's reservations over a buddy allocator, with continuous batching.

    running      a slab of the scheduler each, so that its steps are those of any paged policy
    waiting      the head reserves a piece when a large enough one is free

Policies differ in memory only. An admitted request has all its memory and is never preempted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvsim.accounting.slots import SlotState
from kvsim.contiguous.reservation import (
    POLICIES,
    ReservationPolicy,
    ReservationPool,
    reserved_slots,
)
from kvsim.core.blocks import BlockPool
from kvsim.core.draft import Draft
from kvsim.core.group import SequenceGroup
from kvsim.core.limits import SchedulerConfig
from kvsim.core.placement import Placement
from kvsim.core.step import Finish, Wait, WaitReason
from kvsim.sim.arrivals import Shortfall
from kvsim.sim.config import SimConfig, SimulationError
from kvsim.sim.fast.cohort import CohortPlan, CohortScheduler
from kvsim.sim.policies.base import (
    LARGEST_PIECE,
    NEVER_WRITTEN,
    WHOLE_PIECE,
    WRITTEN_LATER,
)
from kvsim.sim.policies.paged import Paged


class _Reserving(Placement):
    """Admits a request that can reserve its slots."""

    reserve: Callable[[int], bool]

    def admit(self, group: SequenceGroup, draft: Draft, reserve: int) -> Wait | None:
        leader = group.members[0].id
        if not self.reserve(leader):
            return Wait(leader, WaitReason.BLOCKS)
        return super().admit(group, draft, reserve)


class _ReservingScheduler(CohortScheduler):
    def __init__(self, config: SimConfig, reserve: Callable[[int], bool]) -> None:
        limits = SchedulerConfig(
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            long_prefill_token_threshold=config.long_prefill_token_threshold,
        )
        super().__init__(BlockPool(config.max_num_seqs, config.max_length), limits)
        self._placement = _Reserving(self.pool, self._cache, self._preemption)
        self._placement.reserve = reserve


class Reserved(Paged):
    """The policies ``max``, ``pow2`` and ``oracle``.

    Raises:
        SimulationError: ``bad_option``: ``max_num_batched_tokens`` is below ``max_num_seqs``.
    """

    names = (
        SlotState.LIVE.value,
        SlotState.UNWRITTEN.value,
        SlotState.ROUNDING.value,
        SlotState.HOLE.value,
        SlotState.FREE.value,
        WRITTEN_LATER,
        NEVER_WRITTEN,
        LARGEST_PIECE,
        WHOLE_PIECE,
    )

    def __init__(self, config: SimConfig) -> None:
        if config.max_num_batched_tokens < config.max_num_seqs:
            raise SimulationError(
                "bad_option", option="max_num_batched_tokens", value=config.max_num_batched_tokens
            )
        super().__init__(config, _ReservingScheduler(config, self._reserve))
        self.kind: ReservationPolicy = next(each for each in POLICIES if each == config.policy)
        self.reservations = ReservationPool(config.shape.slots, self.kind, config.max_length)

    def memory_shortfall(self, prompt: int, output: int) -> Shortfall | None:
        """See :class:`kvsim.sim.policies.base.Policy`."""
        slots = reserved_slots(self.kind, prompt, output, self.config.max_length)
        buddy, free = self.reservations.buddy, self.reservations.buddy.largest_free_piece
        return None if buddy.ever_fits(slots) else Shortfall("slots", slots, free)

    @property
    def has_work(self) -> bool:
        """See :class:`kvsim.sim.policies.base.Policy`."""
        return self.scheduler.num_running + self.scheduler.num_waiting > 0

    def levels(self) -> tuple[int, ...]:
        """See :class:`kvsim.sim.policies.base.Policy`."""
        return self._levels(0)

    def _reserve(self, row: int) -> bool:
        lengths = self._lengths(row)
        if not self.reservations.fits(*lengths):
            return False
        self.reservations.admit(row, *lengths)
        return True

    def _lengths(self, row: int) -> tuple[int, int]:
        return self._run.arrivals.prompt[row], self._run.arrivals.output[row]

    def _levels(self, live: int) -> tuple[int, ...]:
        pool, head = self.reservations, self.scheduler.next_waiting
        if head is None and self._run.arrivals.waiting:
            head = self._run.arrivals.peek()
        counts = pool.counts(
            live, None if head is None else pool.requested_slots(*self._lengths(head))
        )
        assert sum(counts) == pool.buddy.capacity, "the states do not sum to the pool"
        return (
            live, counts.written_later + counts.never_written, counts.rounding, counts.hole,
            counts.free, counts.written_later, counts.never_written,
            pool.buddy.largest_free_piece, pool.buddy.whole_piece,
        )  # fmt: skip

    def _record(self, work: CohortPlan, duration: int) -> None:
        waiting = work.waiting + self._run.arrivals.waiting
        levels = self._levels(work.logical_tokens)
        self._run.recorder.step(levels, self.scheduler.num_running, waiting, duration)

    def _fast_forward(self, steps: int) -> bool:
        """Decode until the next end, arrival or series point."""
        if not steps:
            return False
        run, (decodes, context) = self._run, self.scheduler.decodes()
        line = run.decode_run(decodes, context, steps)
        slopes = (decodes, -decodes, 0, 0, 0, -decodes)
        waiting = self.scheduler.num_waiting + run.arrivals.waiting
        run.recorder.run(self._levels(context + decodes), slopes, decodes, waiting, line)
        run.totals.computed_tokens += decodes * line.steps
        self._end(self.scheduler.jump(line.steps))
        return True

    def _end(self, finished: Sequence[Finish]) -> None:
        super()._end(finished)
        # In the order in which they began to decode, which decides which pieces are free next.
        for row in sorted((each.request for each in finished), key=self._decoded_last):
            self.reservations.release(row)

    def _decoded_last(self, row: int) -> tuple[int, int]:
        return -self._run.arrivals.output[row], row
