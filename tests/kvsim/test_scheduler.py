"""Who runs in a step: admission, budget, chunks, limits, refusal; preemption by recompute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from scheduling import add, chunks, freed, make_scheduler, step

from kvsim.core.blocks import BlockPool, Key
from kvsim.core.scheduler import Request, RequestRefusedError, Scheduler, SchedulerConfig
from kvsim.core.step import (
    Finish,
    FinishReason,
    OpKind,
    PreemptionCause,
    Wait,
    WaitReason,
)


@pytest.mark.parametrize(
    "limits",
    [
        {"max_num_seqs": 0}, {"max_num_batched_tokens": 0}, {"watermark_blocks": -1},
        {"long_prefill_token_threshold": -1},
    ],
)  # fmt: skip
def test_limits_that_allow_nothing_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="limits"):
        SchedulerConfig(**limits)


@pytest.mark.parametrize(("prompt", "new"), [(0, 1), (1, 0), (-1, 1)])
def test_a_request_without_anything_to_compute_is_refused(prompt: int, new: int) -> None:
    scheduler = make_scheduler()
    with pytest.raises(ValueError, match="needs a prompt"):
        scheduler.add(Request(0, prompt, new))
    assert not scheduler.has_work


# Limits, requests of (prompt, new) tokens, and for each step its chunks of (request, start, count,
# samples) and how many requests wait.
Steps = list[tuple[list[tuple[int, int, int, bool]], int]]
WORKED: dict[str, tuple[dict[str, int], list[tuple[int, int]], Steps]] = {
    "a request is prefilled, then decoded token by token, then ends": (
        {"block_size": 4},
        [(5, 3)],
        [
            ([(0, 0, 5, True)], 0),
            ([(0, 5, 1, True)], 0),
            ([(0, 6, 1, True)], 0),
            ([], 0),
        ],
    ),
    "waiting requests start in the order of their arrival": (
        {"max_num_batched_tokens": 8},
        [(4, 2), (3, 2), (1, 2), (2, 2)],
        [
            ([(0, 0, 4, True), (1, 0, 3, True), (2, 0, 1, True)], 1),
            ([(0, 4, 1, True), (1, 3, 1, True), (2, 1, 1, True), (3, 0, 2, True)], 0),
        ],
    ),
    "the budget is spent exactly, a long prompt runs in chunks beside decoding": (
        {"max_num_batched_tokens": 6},
        [(2, 9), (13, 2)],
        [
            ([(0, 0, 2, True), (1, 0, 4, False)], 0),
            ([(0, 2, 1, True), (1, 4, 5, False)], 0),
            ([(0, 3, 1, True), (1, 9, 4, True)], 0),
            ([(0, 4, 1, True), (1, 13, 1, True)], 0),
        ],
    ),
    "no more requests run than the limit allows": (
        {"max_num_seqs": 2},
        [(2, 2), (2, 3), (2, 2)],
        [
            ([(0, 0, 2, True), (1, 0, 2, True)], 1),
            ([(0, 2, 1, True), (1, 2, 1, True)], 1),
            ([(1, 3, 1, True), (2, 0, 2, True)], 0),
        ],
    ),
    "a small request does not overtake a large one that lacks blocks": (
        {"blocks": 5},
        [(12, 4), (12, 2), (1, 1)],
        [([(0, 0, 12, True)], 2)],
    ),
    "the watermark leaves room for both": (
        {"blocks": 4, "watermark_blocks": 1},
        [(8, 1), (4, 1)],
        [([(0, 0, 8, True), (1, 0, 4, True)], 0)],
    ),
    "the watermark holds blocks back from admission": (
        {"blocks": 4, "watermark_blocks": 2},
        [(8, 1), (4, 1)],
        [([(0, 0, 8, True)], 1)],
    ),
    "a running request may use the watermark": (
        {"blocks": 4, "watermark_blocks": 1},
        [(8, 3), (3, 3)],
        [([(0, 0, 8, True), (1, 0, 3, True)], 0), ([(0, 8, 1, True), (1, 3, 1, True)], 0)],
    ),
    "a lone request may use the watermark": (
        {"blocks": 3, "watermark_blocks": 3},
        [(12, 1), (12, 1)],
        [([(0, 0, 12, True)], 1), ([(1, 0, 12, True)], 0)],
    ),
}


@pytest.mark.parametrize("name", WORKED)
def test_steps_worked_by_hand(name: str) -> None:
    limits, requests, steps = WORKED[name]
    scheduler = make_scheduler(**limits)
    add(scheduler, *requests)
    plans = [step(scheduler) for _ in steps]
    assert [(chunks(plan), plan.waiting) for plan in plans] == steps


def test_a_partial_chunk_samples_nothing_even_when_it_is_said_to_have_stopped() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=4)
    add(scheduler, (10, 1))
    for start in (0, 4):
        plan = scheduler.schedule()
        assert chunks(plan) == [(0, start, 4, False)]
        assert scheduler.complete(plan, stopped=[0]) == ()
    plan = scheduler.schedule()
    assert chunks(plan) == [(0, 8, 2, True)]
    assert scheduler.complete(plan) == (Finish(0, FinishReason.LENGTH),)


@pytest.mark.parametrize(
    ("limits", "requests", "wait"),
    [
        ({}, [(12, 4), (12, 2)], Wait(1, WaitReason.BLOCKS, 3, 2)),
        ({"max_num_batched_tokens": 16}, [(12, 4), (12, 2)], Wait(1, WaitReason.PROMPT, 3, 2)),
        ({"watermark_blocks": 1}, [(12, 4), (8, 2)], Wait(1, WaitReason.WATERMARK, 2, 2)),
        ({"max_num_batched_tokens": 12}, [(12, 4), (4, 2)], Wait(1, WaitReason.TOKENS)),
        ({"max_num_seqs": 1}, [(12, 4), (4, 2)], Wait(1, WaitReason.SEQS, 1, 0)),
        ({}, [(12, 4), (4, 2)], None),
    ],
)
def test_why_the_first_in_the_queue_waits(
    limits: Any, requests: list[tuple[int, int]], wait: Wait | None
) -> None:
    scheduler = make_scheduler(blocks=5, block_size=4, **limits)
    add(scheduler, *requests)
    assert step(scheduler).wait == wait


def test_a_wait_is_told_again_when_its_reason_or_the_first_request_is_another() -> None:
    scheduler = make_scheduler(blocks=5, block_size=4, max_num_seqs=2)
    add(scheduler, (4, 3), (4, 6), (16, 4), (8, 1))
    waits = [plan.wait for plan in (step(scheduler) for _ in range(8))]
    reasons = [wait and (wait.request, wait.reason) for wait in waits]
    # Request 0 ends after the third step, request 1 after the sixth.
    assert reasons == [
        (2, WaitReason.SEQS), None, None, (2, WaitReason.BLOCKS), None, None,
        (3, WaitReason.BLOCKS), None,
    ]  # fmt: skip


def test_prefills_wait_for_their_interval_while_others_decode() -> None:
    scheduler = make_scheduler(blocks=9, block_size=4, prefill_schedule_interval=3)
    add(scheduler, (4, 9))
    step(scheduler)
    scheduler.add(Request(1, 4, 1))
    plans = [step(scheduler) for _ in range(3)]
    assert [[c.request for c in plan.chunks] for plan in plans] == [[0], [0], [0, 1]]
    assert plans[0].wait == Wait(1, WaitReason.INTERVAL)


def test_a_prefill_that_finds_no_block_starts_no_interval() -> None:
    scheduler = make_scheduler(
        blocks=6, block_size=8, max_num_batched_tokens=8, admission="first_chunk",
        prefill_schedule_interval=2,
    )  # fmt: skip
    add(scheduler, (6, 28), (32, 2))
    plans = [step(scheduler) for _ in range(20)]
    # Its turn comes every second step; at 11 another took its block, at 18 it found none itself.
    assert [plan.step for plan in plans if plan.preempted == (1,)] == [11, 18]
    assert [[c.request for c in plan.chunks] for plan in plans[17:]] == [[0], [0], [0, 1]]


def test_what_can_never_fit_is_refused_and_leaves_no_trace() -> None:
    scheduler = make_scheduler(blocks=3, block_size=4)
    with pytest.raises(RequestRefusedError) as caught:
        scheduler.add(Request(4, 10, 4))
    assert (caught.value.request, caught.value.needed, caught.value.available) == (4, 4, 3)
    assert not scheduler.has_work
    scheduler.add(Request(5, 10, 3))  # 12 slots: just fits
    assert scheduler.waiting == (5,)


@pytest.mark.parametrize("run_first", [False, True])
def test_an_id_that_waits_or_runs_is_refused(run_first: bool) -> None:
    scheduler = make_scheduler()
    add(scheduler, (4, 3))
    if run_first:
        step(scheduler)
    with pytest.raises(ValueError, match="already"):
        scheduler.add(Request(0, 2, 2))
    assert len(scheduler.waiting) + len(scheduler.running) == 1


def test_a_stop_token_ends_a_request_and_its_blocks_are_free_at_once() -> None:
    scheduler = make_scheduler(blocks=4)
    add(scheduler, (4, 9), (4, 9))
    plan = scheduler.schedule()
    assert scheduler.complete(plan, stopped=[0]) == (Finish(0, FinishReason.STOP),)
    assert scheduler.pool.num_free == 3
    following = step(scheduler)
    assert following.finished == (Finish(0, FinishReason.STOP),)
    assert freed(following) == {0: (0,)}
    assert [c[0] for c in chunks(following)] == [1]


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


def test_a_victim_computes_its_prompt_and_its_generated_tokens_again() -> None:
    scheduler = make_scheduler(blocks=4, block_size=4)
    add(scheduler, (4, 6), (3, 9))
    plans = [step(scheduler) for _ in range(7)]
    assert [plan.preempted for plan in plans] == [(), (), (), (), (), (1,), ()]
    # 3 of the prompt and the 5 that it had generated; the step also yields its sixth token.
    assert chunks(plans[6]) == [(1, 0, 8, True)]


SIZE = 2


def keys(name: str, shared: int = 0) -> Callable[[int], Sequence[Key]]:
    """The first ``shared`` blocks are those of everybody."""
    return lambda count: [("all", i) if i < shared else (name, i) for i in range(count)]


def run(shared: int) -> tuple[Scheduler, list[int]]:
    """Two requests of 4 + 6 tokens in 7 blocks: the newer one loses its blocks on the way."""
    config = SchedulerConfig(prefix_caching=True, max_num_batched_tokens=16)
    scheduler = Scheduler(BlockPool(7, SIZE), config)
    scheduler.add(Request(0, 4, 6, keys=keys("a", shared)))
    scheduler.complete(scheduler.schedule())
    scheduler.add(Request(1, 4, 6, keys=keys("b", shared)))
    preempted: list[int] = []
    for _ in range(40):
        if not scheduler.has_work:
            return scheduler, preempted
        plan = scheduler.schedule()
        preempted += plan.preempted
        scheduler.pool.check_integrity()
        scheduler.complete(plan)
    raise AssertionError("no end")


@pytest.mark.parametrize("shared", [0, 1])
def test_hits_after_a_preemption_are_split_by_whose_blocks_they_are(shared: int) -> None:
    scheduler, preempted = run(shared)
    stats = scheduler.stats
    assert preempted == [1]
    assert stats.queried == 8  # both prompts, once
    assert stats.hit_cross == shared * SIZE
    assert stats.requeried > 4  # its prompt and what it had generated
    assert stats.hit_again == shared * SIZE  # the other's block, found again
    assert stats.hit_own > 0
    assert stats.hit_own + stats.hit_again < stats.requeried
