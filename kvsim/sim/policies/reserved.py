"""Orca's reservations over a buddy allocator, with continuous batching.

    running      decoding: totals and a calendar of ends     prefilling: oldest first
    waiting      the head reserves a piece when a large enough one is free

Steps are those of the paged scheduler (token budget, chunked prefill, no overtaking), so policies
differ in memory only. An admitted request has all its memory and is never preempted.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from kvsim.accounting.slots import SlotState
from kvsim.contiguous.reservation import (
    POLICIES,
    ReservationPolicy,
    ReservationPool,
    reserved_slots,
)
from kvsim.latency.roofline import StepWork
from kvsim.sim.arrivals import Shortfall
from kvsim.sim.config import SimConfig, SimulationError
from kvsim.sim.policies.base import (
    LARGEST_PIECE,
    NEVER_WRITTEN,
    WHOLE_PIECE,
    WRITTEN_LATER,
    Policy,
)


@dataclass(slots=True)
class _Prefill:
    """A request whose prompt is not fully computed."""

    row: int
    prompt: int
    computed: int = 0


class Reserved(Policy):
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
        super().__init__(config)
        self.kind: ReservationPolicy = next(each for each in POLICIES if each == config.policy)
        self.pool = ReservationPool(config.shape.slots, self.kind, config.max_length)
        self._prefilling: list[_Prefill] = []
        self._tick = 0
        self._ends: dict[int, list[int]] = {}  # rows by the tick at which they end
        self._ticks: list[int] = []  # a heap of its keys
        self._decoding = 0
        self._context = 0  # positions written by decoding requests
        self._ahead = 0  # of these, positions not passed to the pool yet
        self._stalled = False

    def memory_shortfall(self, prompt: int, output: int) -> Shortfall | None:
        """See :class:`kvsim.sim.policies.base.Policy`."""
        slots = reserved_slots(self.kind, prompt, output, self.config.max_length)
        if not self.pool.buddy.ever_fits(slots):
            return Shortfall("slots", slots, self.pool.buddy.largest_free_piece)
        return None

    @property
    def has_work(self) -> bool:
        """See :class:`kvsim.sim.policies.base.Policy`."""
        return bool(self._decoding or self._prefilling)

    def levels(self) -> tuple[int, ...]:
        """See :class:`kvsim.sim.policies.base.Policy`."""
        waits = self._run.arrivals.waiting
        counts = self.pool.counts(
            self.pool.requested_slots(*self._head()) if waits else None, self._ahead
        )
        unwritten = counts.written_later + counts.never_written
        assert counts.total == self.pool.buddy.capacity, "the states do not sum to the pool"
        buddy = self.pool.buddy
        return (
            counts.live, unwritten, counts.rounding, counts.hole, counts.free,
            counts.written_later, counts.never_written, buddy.largest_free_piece, buddy.whole_piece,
        )  # fmt: skip

    def step(self) -> None:
        """See :class:`kvsim.sim.policies.base.Policy`."""
        waits = self._run.arrivals.waiting
        decode_only = self._run.jump and self._decoding and not self._prefilling
        if decode_only and (self._stalled or not waits):
            self._decode_only()
        else:
            self._single_step()

    def _head(self) -> tuple[int, int]:
        arrivals = self._run.arrivals
        row = arrivals.peek()
        return arrivals.prompt[row], arrivals.output[row]

    def _decode_only(self) -> None:
        """Decode until the next end, arrival or series point."""
        run, decodes = self._run, self._decoding
        line = run.clock.decode_run(decodes, self._context, self._ticks[0] - self._tick)
        span = run.horizon()
        if span > 0:
            line = line.until(span)
        self._context += decodes
        self._ahead += decodes
        slopes = (decodes, -decodes, 0, 0, 0, -decodes)
        run.recorder.run(
            self.levels(), slopes, decodes, run.arrivals.waiting,
            line.steps, line.duration, line.moment,
        )  # fmt: skip
        more = decodes * (line.steps - 1)
        self._context += more
        self._ahead += more
        run.totals.computed_tokens += decodes + more
        self._tick += line.steps
        self._end_rows()

    def _single_step(self) -> None:
        run, decodes = self._run, self._decoding
        read = pairs = self._context + decodes
        self._context += decodes
        self._ahead += decodes
        budget = self.config.max_num_batched_tokens - decodes
        prefill = 0
        for each, count in self._chunks(budget):
            prefill += count
            read += each.computed + count
            pairs += count * each.computed + count * (count + 1) // 2
            self.pool.write(each.row, count)
            each.computed += count
        self._stalled = bool(run.arrivals.waiting) and not prefill
        duration = run.clock.step(StepWork(prefill, decodes, read, pairs))
        running = decodes + len(self._prefilling)
        run.recorder.step(self.levels(), running, run.arrivals.waiting, duration)
        run.totals.computed_tokens += decodes + prefill
        self._tick += 1
        self._end_rows()
        self._begin_decoding()

    def _chunks(self, budget: int) -> list[tuple[_Prefill, int]]:
        """Return the prompt chunks of this step; admits requests that fit."""
        run, free_seqs = self._run, self.config.max_num_seqs - self._decoding
        threshold = self.config.long_prefill_token_threshold
        chunks = []
        place = 0
        while budget > 0:
            if place == len(self._prefilling) and not self._admit(free_seqs):
                break
            each = self._prefilling[place]
            count = min(each.prompt - each.computed, budget)
            others = self._decoding + len(self._prefilling) + run.arrivals.waiting > 1
            if threshold and others:
                count = min(count, threshold)
            chunks.append((each, count))
            budget -= count
            place += 1
        return chunks

    def _admit(self, free_seqs: int) -> bool:
        run = self._run
        if not run.arrivals.waiting or len(self._prefilling) >= free_seqs:
            return False
        prompt, output = self._head()
        if not self.pool.fits(prompt, output):
            return False
        row = run.arrivals.pop()
        self.pool.admit(row, prompt, output)
        self._prefilling.append(_Prefill(row, prompt))
        run.started(row)
        return True

    def _begin_decoding(self) -> None:
        """Move requests with a computed prompt to decoding, or end them."""
        run = self._run
        left = []
        for each in self._prefilling:
            if each.computed < each.prompt:
                left.append(each)
                continue
            run.first_token(each.row)
            more = run.arrivals.output[each.row] - 1
            if not more:
                self._stalled = False
                self.pool.release(each.row)
                run.finish(each.row)
                continue
            self._decoding += 1
            self._context += each.prompt
            end = self._tick + more
            if end not in self._ends:
                self._ends[end] = []
                heapq.heappush(self._ticks, end)
            self._ends[end].append(each.row)
        self._prefilling = left

    def _end_rows(self) -> None:
        if not self._ticks or self._ticks[0] > self._tick:
            return
        run = self._run
        for row in self._ends.pop(heapq.heappop(self._ticks)):
            decoded = run.arrivals.output[row] - 1
            self.pool.write(row, decoded)
            self._ahead -= decoded
            self._context -= run.arrivals.prompt[row] + decoded
            self._decoding -= 1
            self.pool.release(row)
            run.finish(row)
        self._stalled = False
