"""Paged memory for parallel samples, beam search or priorities: every step by the scheduler.

    samples   prompt ──┬─► sequence 0      share the prompt's blocks from the first token on;
                       ├─► sequence 1      the last, partial one is copied when it is written
                       └─► sequence 2
    beams     a b c  ─►  a a c             with probability `branching` a beam is replaced by a
                                           fork of another one

Real beam searches follow the model's probabilities. Here branching is random, so results hold for
the given probability only.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from itertools import count

from kvsim.accounting.ledger import Ledger
from kvsim.accounting.slots import SlotState
from kvsim.core.blocks import BlockPool
from kvsim.core.request import Request
from kvsim.core.scheduler import Scheduler
from kvsim.core.step import OpKind, StepPlan
from kvsim.latency.roofline import StepWork
from kvsim.sim.arrivals import Shortfall
from kvsim.sim.config import SimConfig
from kvsim.sim.policies.paged import PAGED_LEVELS, Blocks

_STATES = tuple(SlotState(name) for name in PAGED_LEVELS)
Forks = dict[int, list[Request]]


class Forked(Blocks):
    """Samples, beams, priorities and other limits that a cohort does not support; no shortcuts."""

    def __init__(self, config: SimConfig) -> None:
        pool = BlockPool(config.shape.blocks, config.shape.block_size)
        self.scheduler = Scheduler(pool, config.scheduling)
        super().__init__(config, pool, self.scheduler)
        self.ledger = Ledger(self.shape)
        self._random = random.Random(config.seed)  # noqa: S311 - reproducible, not secret
        self._ids = count()
        self._row: dict[int, int] = {}  # the request of each sequence
        self._sequences: dict[int, Request] = {}
        self._left: dict[int, int] = {}  # unfinished sequences of each request

    def check(self, prompt: int, output: int, samples: int) -> Shortfall | None:
        """See :class:`kvsim.sim.policies.base.Policy`."""
        config, beams = self.config, self.config.beams
        together = max(beams, samples)
        if together > 1 and not config.paged:
            return Shortfall("samples", together, 1)
        if together > config.max_num_seqs:
            return Shortfall("seqs", together, config.max_num_seqs)
        if beams > config.max_num_batched_tokens:
            return Shortfall("tokens", beams, config.max_num_batched_tokens)
        return super().check(prompt, output, 1)

    def levels(self) -> tuple[int, ...]:
        """See :class:`kvsim.sim.policies.base.Policy`."""
        counts = self.ledger.counts()
        assert counts.reserved == self.shape.slots, "the states do not sum to the pool"
        return tuple(counts[state] for state in _STATES)

    def step(self) -> None:
        """See :class:`kvsim.sim.policies.base.Policy`."""
        run, scheduler = self._run, self.scheduler
        self._submit()
        plan = scheduler.schedule()
        self.ledger.apply(plan)
        duration = run.clock.step(self._work(plan)) + self._count(plan)
        running, waiting = len(scheduler.running), plan.waiting + run.arrivals.waiting
        run.recorder.step(self.levels(), running, waiting, duration)
        self._complete(plan)

    def _submit(self) -> None:
        """Submit the requests that could be admitted at once, and one more.

        With priorities, submit all of them.
        """
        arrivals = self._run.arrivals
        room = self.config.max_num_seqs + 1 - len(self.scheduler.waiting)
        if self.config.scheduling_policy != "fcfs":
            room = arrivals.waiting
        while room > 0 and arrivals.waiting:
            room -= 1
            row, request = self.pop_request(next(self._ids))
            self._left[row] = 0
            self._enter(request, row)
            self.scheduler.add(request)

    def _enter(self, sequence: Request, row: int) -> None:
        self._row[sequence.id], self._sequences[sequence.id] = row, sequence
        self._left[row] += 1

    def _work(self, plan: StepPlan) -> StepWork:
        """Return the work of the step; a decode is the newest token alone, after the first."""
        sequences = self._sequences

        def decodes(request: int, start: int) -> bool:
            one = sequences[request]
            return bool(one.generated) and start == one.known - 1

        return StepWork.of((c.start, c.count, decodes(c.request, c.start)) for c in plan.chunks)

    def _count(self, plan: StepPlan) -> int:
        """Count what the plan does; return the attoseconds of swapping."""
        run, totals = self._run, self._run.totals
        for chunk in plan.chunks:
            run.started(self._row[chunk.request])
        for op in plan.ops:
            if op.kind is OpKind.COPY:
                totals.copied_blocks += len(op.blocks)
        rows = [self._row[request] for request in plan.preempted]
        # A beam search is preempted as one.
        rows = sorted(set(rows)) if self.config.beams > 1 else rows
        totals.preempted.update(rows)
        run.recorder.preempted += len(rows)
        totals.computed_tokens += plan.tokens
        totals.shared_tokens = self.scheduler.found_late
        totals.held += self.ledger.owned_blocks
        totals.unshared += self.ledger.table_entries
        return self.transfer_time(plan.ops)

    def _complete(self, plan: StepPlan) -> None:
        run = self._run
        sampled = [self._sequences[c.request] for c in plan.chunks if c.samples]
        for request in sampled:
            run.first_token(self._row[request.id])
        forks: Forks = {}
        pruned: list[int] = []
        if self.config.beams > 1:
            self._sample_beams(sampled, forks, pruned)
        else:
            for request in sampled:
                if not request.generated:
                    more = run.arrivals.samples[self._row[request.id]] - 1
                    self._fork(request, more, forks)
        for finish in self.scheduler.complete(plan, (), forks, pruned):
            self._end(finish.request)

    def _sample_beams(self, sampled: Sequence[Request], forks: Forks, pruned: list[int]) -> None:
        """Sample which beams are continued, for every search with new tokens."""
        searches: dict[int, list[Request]] = defaultdict(list)
        for request in sampled:
            searches[self._row[request.id]].append(request)
        for beams in searches.values():
            first = beams[0]
            if not first.generated:
                self._fork(first, self.config.beams - 1, forks)
                continue
            if first.generated + 1 == first.max_new_tokens:
                continue  # all of them end with this token
            replaced = [b for b in beams if self._random.random() < self.config.branching]
            kept = [b for b in beams if b not in replaced] or [replaced.pop(0)]
            pruned += [beam.id for beam in replaced]
            for _ in replaced:
                self._fork(self._random.choice(kept), 1, forks)

    def _fork(self, parent: Request, children: int, forks: Forks) -> None:
        row = self._row[parent.id]
        for _ in range(children):
            child = Request(
                next(self._ids), parent.prompt_tokens, parent.max_new_tokens, parent.keys,
                parent.priority,
            )  # fmt: skip
            self._enter(child, row)
            forks.setdefault(parent.id, []).append(child)

    def _end(self, sequence: int) -> None:
        row = self._row.pop(sequence)
        del self._sequences[sequence]
        self._left[row] -= 1
        if not self._left[row]:
            del self._left[row]
            beams = self.config.beams
            self._run.finish(row, beams if beams > 1 else self._run.arrivals.samples[row])
