"""Preemption by recompute, and what holds for every workload."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from scheduling import Workload, add, chunks, ends, freed, make_scheduler, step, workloads
from sweeps import TIMES

from kvsim.core.scheduler import Scheduler
from kvsim.core.step import FinishReason, OpKind, PreemptionCause, StepPlan, Wait, WaitReason


def crowded() -> Scheduler:
    """Three requests that fill the pool to the last slot after one step."""
    scheduler = make_scheduler(blocks=3, block_size=4)
    add(scheduler, (4, 5), (4, 5), (4, 5))
    assert len(step(scheduler).chunks) == 3
    assert scheduler.pool.num_free == 0
    return scheduler


def test_the_newest_request_gives_way_and_waits_first_in_the_queue() -> None:
    scheduler = crowded()
    plan = step(scheduler)
    assert plan.preempted == (2, 1)  # request 0 took the block of 2; then 1, the newest, gave way
    assert [(op.kind, op.request) for op in plan.ops] == [
        (OpKind.FREE, 2),
        (OpKind.ALLOCATE, 0),
        (OpKind.FREE, 1),
    ]
    assert chunks(plan) == [(0, 4, 1, True)]
    assert scheduler.running == (0,)
    assert scheduler.waiting == (1, 2)
    # Request 0 needed a block and there was none; then request 1 needed one, and gave way itself.
    assert plan.causes == (PreemptionCause(0, 1, 0, 4), PreemptionCause(1, 1, 0, 4))
    assert plan.wait == Wait(1, WaitReason.PREEMPTION)


def test_a_victim_goes_in_front_of_those_that_never_ran() -> None:
    scheduler = make_scheduler(blocks=3, block_size=4, max_num_seqs=2)
    add(scheduler, (4, 6), (8, 3), (1, 1))
    step(scheduler)
    plan = step(scheduler)
    assert plan.preempted == (1,)
    assert freed(plan) == {1: (1, 2)}
    assert scheduler.waiting == (1, 2)
    assert scheduler.pool.num_free == 1  # enough for request 2, which must not overtake
    assert [c[0] for c in chunks(plan)] == [0]


def test_a_victim_computes_its_prompt_and_its_generated_tokens_again() -> None:
    scheduler = make_scheduler(blocks=4, block_size=4)
    add(scheduler, (4, 6), (3, 9))
    plans = [step(scheduler) for _ in range(7)]
    assert [plan.preempted for plan in plans] == [(), (), (), (), (), (1,), ()]
    # 3 of the prompt and the 5 that it had generated; the step also yields its sixth token.
    assert chunks(plans[6]) == [(1, 0, 8, True)]


class Watch:
    """Follows a run with counts of its own and checks each plan against them."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.generated = Counter[int]()
        self.computed: dict[int, int] = {}
        self.started: list[int] = []
        self.preemptions = 0

    def check(self, scheduler: Scheduler, plan: StepPlan) -> None:
        config = self.workload.config
        assert plan.tokens <= config.max_num_batched_tokens
        assert len(scheduler.running) <= config.max_num_seqs
        assert len(scheduler.waiting) == plan.waiting
        for request in (*plan.preempted, *(finish.request for finish in plan.finished)):
            self.computed.pop(request, None)
        names = [chunk.request for chunk in plan.chunks]
        assert len(set(names)) == len(names)
        assert set(names) <= set(scheduler.running)
        for request, start, count, samples in chunks(plan):
            known = self.workload.requests[request][0] + self.generated[request]
            assert start == self.computed.get(request, 0)
            assert 1 <= count <= known - start
            assert samples == (start + count == known)
            self.computed[request] = start + count
            self.generated[request] += samples
            if request not in self.started:
                self.started.append(request)
        # Only the budget may cut a chunk short, so at most the last one is cut.
        cut = [i for i, c in enumerate(plan.chunks) if not c.samples]
        assert cut in ([], [len(plan.chunks) - 1])
        assert not cut or plan.tokens == config.max_num_batched_tokens
        self.preemptions += len(plan.preempted)
        scheduler.pool.check_integrity()


@settings(max_examples=75 * TIMES)
@given(workloads())
def test_every_accepted_request_ends_and_every_step_keeps_the_rules(workload: Workload) -> None:
    watch = Watch(workload)
    reasons = ends(workload.run(watch.check))
    assert sorted(reasons) == list(range(len(workload.requests)))
    assert watch.started == sorted(watch.started)  # nobody overtakes
    for request, (_, new) in enumerate(workload.requests):
        expected = min(new, workload.stops.get(request, new))
        if reasons[request] is FinishReason.ABORTED:
            assert request in workload.aborts
            assert watch.generated[request] <= expected
        else:
            assert watch.generated[request] == expected
            stopped = workload.stops.get(request, new + 1) <= new
            assert reasons[request] is (FinishReason.STOP if stopped else FinishReason.LENGTH)


def test_the_random_workloads_do_preempt() -> None:
    preempted = 0

    @settings(max_examples=25 * TIMES)
    @given(workloads())
    def count(workload: Workload) -> None:
        nonlocal preempted
        watch = Watch(workload)
        workload.run(watch.check)
        preempted += watch.preemptions

    count()
    assert preempted > 0


@settings(max_examples=25 * TIMES)
@given(workloads())
def test_at_the_end_every_block_is_free(workload: Workload) -> None:
    free = []
    workload.run(lambda scheduler, plan: free.append((scheduler.pool, plan)))
    pool, _ = free[-1]
    assert pool.num_free == workload.blocks
