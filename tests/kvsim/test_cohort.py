"""Jumping to what changes gives the plans of stepping: same blocks, same order, same counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweeps import TIMES

from kvsim.accounting.ledger import Ledger
from kvsim.accounting.slots import PoolShape, SlotState
from kvsim.core.blocks import BlockPool, Key
from kvsim.core.limits import RequestRefusedError, SchedulerConfig
from kvsim.core.request import Request
from kvsim.core.scheduler import Scheduler
from kvsim.core.step import OpKind, StepPlan
from kvsim.latency.roofline import StepWork
from kvsim.sim.fast.cohort import CohortPlan, CohortScheduler, forms_cohort
from kvsim.sim.fast.decode_only import block_levels
from kvsim.sim.fast.run_pool import RunPool
from kvsim.traces.hash_keys import HashKeys

MOST_STEPS = 5000
TALLIED = tuple(map(SlotState, ("live", "cached", "unwritten", "watermark", "free")))


@dataclass(frozen=True)
class Case:
    """Requests of (step of arrival, prompt, new tokens, group of equal prompts)."""

    blocks: int
    block_size: int
    config: SchedulerConfig
    requests: tuple[tuple[int, int, int, int], ...]
    in_runs: bool = False
    hash_size: int = 0
    same_answers: bool = False

    def scheduler(self, kind: Callable[..., Scheduler]) -> Scheduler:
        pool = RunPool if self.in_runs and kind is not Scheduler else BlockPool
        return kind(pool(self.blocks, self.block_size), self.config)

    def arrivals(self, step: int) -> list[Request]:
        return [
            Request(number, prompt, new, keys=self.keys(number, prompt, group))
            for number, (at, prompt, new, group) in enumerate(self.requests)
            if at == step
        ]

    def keys(self, number: int, prompt: int, group: int) -> object:
        """Equal for the prompts of a group, as far as the shorter one goes; then its own.

        Or equal for all that a group reads and writes, if its answers are the same ones.
        """
        if self.hash_size:
            ids = tuple(100 * group + i for i in range(-(-prompt // self.hash_size)))
            return HashKeys(number, prompt, ids, self.hash_size, self.block_size)

        def first(count: int) -> Sequence[Key]:
            whole = count if self.same_answers else prompt // self.block_size
            return [(group, i) if i < whole else (group, number, i) for i in range(count)]

        return first


@st.composite
def cases(draw: st.DrawFn) -> Case:
    seqs = draw(st.integers(1, 8))
    size = draw(st.sampled_from([1, 2, 3, 4, 8]))
    tokens = draw(st.integers(seqs, 24))
    config = SchedulerConfig(
        max_num_seqs=seqs,
        max_num_active_seqs=draw(st.none() | st.integers(1, seqs)),
        max_num_batched_tokens=tokens,
        max_num_scheduled_tokens=draw(st.none() | st.integers(seqs, tokens)),
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 3])),
        long_prefill_token_threshold_adaptive=draw(st.booleans()),
        admission=draw(st.sampled_from(["full", "first_chunk"])),
        scheduler=draw(st.sampled_from(["vllm-0.32", "vllm-0.33"])),
        watermark_blocks=draw(st.integers(0, 2)),
        preemption=draw(st.sampled_from(["recompute", "swap"])),
        host_blocks=draw(st.sampled_from([0, 6, 40])),
        prefix_caching=draw(st.booleans()),
    )
    request = st.tuples(
        st.integers(0, 12), st.integers(1, 30), st.integers(1, 12), st.integers(0, 2)
    )
    requests = draw(st.lists(request, min_size=1, max_size=12))
    in_runs, hash_size = draw(st.booleans()), draw(st.sampled_from([0, 3, 4, 8, 16]))
    blocks = draw(st.integers(4, 30))
    same = draw(st.booleans())
    return Case(blocks, size, config, tuple(requests), in_runs, hash_size, same)


def feed(scheduler: Scheduler, requests: Sequence[Request]) -> int:
    refused = 0
    for request in requests:
        try:
            scheduler.add(request)
        except RequestRefusedError:
            refused += 1
    return refused


def step_work(scheduler: Scheduler, plan: StepPlan) -> StepWork:
    requests = scheduler._requests
    return StepWork.of(
        (c.start, c.count, bool(requests[c.request].generated) and c.count == 1 and c.samples)
        for c in plan.chunks
    )


def both(case: Case) -> int:
    """Step both side by side and compare everything; how many steps it took."""
    plain, fast = case.scheduler(Scheduler), case.scheduler(CohortScheduler)
    assert isinstance(fast, CohortScheduler)
    shape = PoolShape(case.blocks, case.block_size, 1, case.config.watermark_blocks)
    ledger = Ledger(shape)
    last = max(at for at, *_ in case.requests)
    for step in range(MOST_STEPS):
        assert feed(plain, case.arrivals(step)) == feed(fast, case.arrivals(step))
        assert plain.has_work == fast.has_work
        if not plain.has_work and step > last:
            return step
        plan, work = plain.schedule(), fast.plan()
        compare(plain, plan, fast, work)
        pool = fast.pool
        live = work.logical_tokens - pool.extra_references * case.block_size
        slots = block_levels(shape, live, pool.num_owned, pool.num_cached)
        assert pool.drain_evicted() == ()  # nothing piles up
        assert nonzero(dict(zip(TALLIED, slots, strict=True))) == nonzero(ledger.apply(plan).states)
        assert plain.complete(plan) == fast.commit(work)
        fast.pool.check_integrity()
    raise AssertionError("no end")


def nonzero(states: Mapping[SlotState, int]) -> dict[SlotState, int]:
    return {state: count for state, count in states.items() if count}


def compare(plain: Scheduler, plan: StepPlan, fast: CohortScheduler, work: CohortPlan) -> None:
    planned, made = (
        [op for op in ops if op.kind in (OpKind.SWAP_IN, OpKind.SWAP_OUT)]
        for ops in (plan.ops, work.ops)
    )
    assert planned == made
    assert (plan.preempted, plan.waiting) == (work.preempted, work.waiting)
    assert work.step_work == step_work(plain, plan)
    assert len(plain.running) == fast.num_running
    same_pools(plain, fast)
    assert plain.stats == fast.stats


def same_pools(plain: Scheduler, fast: Scheduler) -> None:
    for pool, other in ((plain.pool, fast.pool), (plain.host, fast.host)):
        if pool is None or other is None:
            assert pool is other
            continue
        assert {r: list(pool.table(r)) for r in pool.owners} == {
            r: list(other.table(r)) for r in other.owners
        }
        assert pool.cached == other.cached


@settings(max_examples=100 * TIMES, deadline=None)
@given(cases())
def test_the_cohort_does_what_stepping_does(case: Case) -> None:
    both(case)


def test_a_long_quiet_replay_forms_a_cohort() -> None:
    """The fast path is really taken: plans without the cohort's chunks."""
    config = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64)
    case = Case(100, 4, config, tuple((i, 10, 40, i) for i in range(4)))
    fast = case.scheduler(CohortScheduler)
    assert isinstance(fast, CohortScheduler)
    feed(fast, [r for step in range(4) for r in case.arrivals(step)])
    seen = []
    while fast.has_work:
        work = fast.plan()
        seen.append((len(work.chunks), work.step_work.decode_tokens))
        fast.commit(work)
    assert seen[0] == (4, 0)
    assert seen[1:-1] == [(0, 4)] * 39
    assert seen[-1] == (0, 0)


@pytest.mark.parametrize(
    ("limits", "forms"),
    [
        ({}, True),
        ({"max_num_seqs": 8, "max_num_batched_tokens": 7}, False),
        ({"policy": "priority"}, False),
        ({"prefill_schedule_interval": 2}, False),
    ],
)
def test_limits_under_which_requests_wait_for_each_other_form_no_cohort(
    limits: Any, forms: bool
) -> None:
    assert forms_cohort(SchedulerConfig(**limits)) is forms
