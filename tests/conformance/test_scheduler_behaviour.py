"""22, 24 and 26 to 28: budgets, who gives way, who is served first, and that nobody hangs."""

from __future__ import annotations

import random

import pytest
from driver import Driver
from scheduling import add, chunks, make_scheduler, step
from tiny_engine import make_engine, solo

from kvsim.core.request import Request
from kvsim.core.step import FinishReason


def test_22_the_second_of_two_long_prompts_gets_what_is_left_of_the_budget() -> None:
    scheduler = make_scheduler(blocks=200, block_size=16, max_num_batched_tokens=1024)
    add(scheduler, (800, 2), (800, 2))
    assert chunks(step(scheduler)) == [(0, 0, 800, True), (1, 0, 224, False)]
    assert chunks(step(scheduler)) == [(0, 800, 1, True), (1, 224, 576, True)]


def test_26_under_the_priority_policy_the_least_urgent_then_the_latest_gives_way() -> None:
    driver = Driver(4, 4, policy="priority", prefix_caching=False)
    for request, priority in enumerate((1, 2, 2, 0)):
        driver.add(request, [7] * 4, 3, priority)
    driver.step()
    assert driver.pool.num_free == 0
    plan = driver.step()
    assert plan.preempted == (2, 1)
    assert driver.scheduler.waiting == (1, 2)


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("watermark", [0, 9])
def test_27_what_fits_alone_ends_however_small_the_pool(
    caching: bool, preemption: str, watermark: int
) -> None:
    """Four samples of one prompt in a pool that just holds one of them."""
    prompt, new = list(range(1, 8)), 6  # 12 slots
    engine = make_engine(
        "gpt2", 3, 4, prefix_caching=caching, preemption=preemption, host_blocks=2,
        watermark_blocks=watermark, max_num_batched_tokens=5,
    )  # fmt: skip
    engine.add(0, prompt, new, children=(1, 2, 3))
    steps = 0
    while engine.scheduler.has_work:
        engine.step()
        steps += 1
        assert steps < 200, "no progress"
    for request in range(4):
        assert engine.generated(request) == solo("gpt2", prompt, new)
    assert engine.blocks.num_free == 3


def served(policy: str, priorities: list[int]) -> list[int]:
    driver = Driver(50, 4, policy=policy, max_num_seqs=1)
    for request, priority in enumerate(priorities):
        driver.add(request, [request, 1, 2], 1, priority)
    return [chunk.request for plan in driver.run() for chunk in plan.chunks]


def test_28_service_is_by_priority_then_arrival_and_fcfs_ignores_priorities() -> None:
    assert served("priority", [2, 0, 1, 0, 2]) == [1, 3, 2, 0, 4]
    assert served("fcfs", [2, 0, 1, 0, 2]) == [0, 1, 2, 3, 4]


def test_28_an_urgent_request_takes_nothing_from_others_while_there_is_room() -> None:
    driver = Driver(20, 4, policy="priority")
    driver.add(0, [1, 2, 3], 9, priority=5)
    driver.step()
    driver.add(1, [4, 5, 6], 9, priority=0)
    plans = driver.run()
    assert [plan.preempted for plan in plans if plan.preempted] == []


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_28_the_queue_is_in_order_after_random_pushes_and_removals(policy: str) -> None:
    draw, scheduler = random.Random(3), Driver(50, 4, policy=policy).scheduler
    waiting: list[Request] = []
    for arrival in range(300):
        request = Request(arrival, 1, 1, priority=draw.randint(-3, 3))
        scheduler.add(request)
        waiting.append(request)
        if draw.random() < 0.4:
            gone = draw.choice(waiting)
            scheduler.abort(gone.id)
            waiting.remove(gone)
        if policy == "priority":
            waiting.sort(key=lambda each: (each.priority, each.id))
        assert scheduler.waiting == tuple(each.id for each in waiting)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_28_random_traffic_of_every_kind_ends_and_leaves_nothing(policy: str) -> None:
    preempted = 0
    for seed in range(30):
        draw = random.Random(seed)
        driver = Driver(
            draw.randint(10, 16), 4, policy=policy, prefix_caching=draw.random() < 0.5,
            max_num_seqs=draw.randint(1, 8), max_num_batched_tokens=draw.randint(1, 40),
            watermark_blocks=draw.randint(0, 3), host_blocks=draw.randint(0, 12),
            preemption=draw.choice(("recompute", "swap")),
            long_prefill_token_threshold=draw.choice((0, 3)),
        )  # fmt: skip
        ended: list[FinishReason] = []
        steps = request = 0
        while request < 25 or driver.scheduler.has_work:
            assert steps < 5000, "no progress"
            if request < 25 and draw.random() < 0.5:
                prompt = [draw.randrange(3) for _ in range(draw.randint(1, 20))]
                driver.add(request, prompt, draw.randint(1, 20), draw.randint(0, 3))
                request += 1
            if request and draw.random() < 0.05:
                driver.scheduler.abort(draw.randrange(request))
            plan = driver.step()
            preempted += len(plan.preempted)
            ended += [finish.reason for finish in plan.finished]
            steps += 1
        assert len(ended) == 25
        assert driver.pool.num_free == driver.pool.num_blocks
    assert preempted > 0


def test_a_long_prefill_leaves_room_for_those_behind_it() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=12, long_prefill_token_threshold=5)
    add(scheduler, (14, 2), (4, 2), (6, 1))
    assert [chunks(step(scheduler)) for _ in range(3)] == [
        [(0, 0, 5, False), (1, 0, 4, True), (2, 0, 3, False)],
        [(0, 5, 5, False), (1, 4, 1, True), (2, 3, 3, True)],
        [(0, 10, 4, True)],
    ]


def test_a_lone_request_is_not_held_back() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=12, long_prefill_token_threshold=5)
    add(scheduler, (14, 2))
    assert chunks(step(scheduler)) == [(0, 0, 12, False)]


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_the_threshold_changes_no_token(preemption: str) -> None:
    engine = make_engine(
        "llama", 12, 4, long_prefill_token_threshold=3, preemption=preemption, host_blocks=8,
        prefix_caching=True,
    )  # fmt: skip
    prompts = [list(range(1, 24)), list(range(1, 14)), list(range(30, 38))]
    for request, prompt in enumerate(prompts):
        engine.add(request, prompt, 9)
    preempted = 0
    while engine.scheduler.has_work:
        outcome, _ = engine.step()
        preempted += len(outcome.plan.preempted)
        counts = [chunk.count for chunk in outcome.plan.chunks]
        assert len(counts) < 2 or max(counts) <= 3
        engine.blocks.check_integrity()
    assert preempted > 0
    for request, prompt in enumerate(prompts):
        assert engine.generated(request) == solo("llama", prompt, 9)
