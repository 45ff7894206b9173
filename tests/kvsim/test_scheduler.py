"""Who runs in a step: admission, budget, chunks, limits, refusal, abort."""

from __future__ import annotations

from typing import Any

import pytest
from scheduling import add, chunks, ends, freed, make_scheduler, step

from kvsim.core.scheduler import Request, RequestRefusedError, SchedulerConfig
from kvsim.core.step import Finish, FinishReason, Wait, WaitReason


@pytest.mark.parametrize(
    "limits", [{"max_num_seqs": 0}, {"max_num_batched_tokens": 0}, {"watermark_blocks": -1}]
)
def test_limits_that_allow_nothing_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="limits"):
        SchedulerConfig(**limits)


@pytest.mark.parametrize(("prompt", "new"), [(0, 1), (1, 0), (-1, 1)])
def test_a_request_without_anything_to_compute_is_refused(prompt: int, new: int) -> None:
    scheduler = make_scheduler()
    with pytest.raises(ValueError, match="needs a prompt"):
        scheduler.add(Request(0, prompt, new))
    assert not scheduler.has_work


def test_a_request_is_prefilled_then_decoded_token_by_token_then_ends() -> None:
    scheduler = make_scheduler(block_size=4)
    add(scheduler, (5, 3))
    plans = [step(scheduler) for _ in range(4)]
    assert [chunks(plan) for plan in plans] == [
        [(0, 0, 5, True)],
        [(0, 5, 1, True)],
        [(0, 6, 1, True)],
        [],
    ]
    assert [plan.step for plan in plans] == [0, 1, 2, 3]
    assert [len(op.blocks) for op in plans[0].ops] == [2]
    assert plans[3].finished == (Finish(0, FinishReason.LENGTH),)
    assert freed(plans[3]) == {0: (0, 1)}
    assert not scheduler.has_work


# Limits, requests of (prompt, new) tokens, and for each step its chunks of (request, start, count,
# samples) and how many requests wait.
Steps = list[tuple[list[tuple[int, int, int, bool]], int]]
WORKED: dict[str, tuple[dict[str, int], list[tuple[int, int]], Steps]] = {
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


def test_a_request_can_be_aborted_in_the_middle_of_its_prefill() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=4)
    add(scheduler, (10, 2))
    step(scheduler)
    assert scheduler.abort(0) is True
    assert scheduler.pool.num_free == scheduler.pool.num_blocks
    assert chunks(step(scheduler)) == []
    assert not scheduler.has_work


def test_what_was_aborted_while_its_plan_ran_is_not_completed() -> None:
    scheduler = make_scheduler()
    add(scheduler, (4, 1), (4, 1))
    plan = scheduler.schedule()
    scheduler.abort(0)
    assert scheduler.complete(plan, stopped=[0]) == (Finish(1, FinishReason.LENGTH),)
    assert ends([step(scheduler)]) == {0: FinishReason.ABORTED, 1: FinishReason.LENGTH}


def test_aborting_a_stranger_or_an_ended_request_says_no() -> None:
    scheduler = make_scheduler()
    assert scheduler.abort(0) is False
    add(scheduler, (4, 1))
    step(scheduler)
    assert scheduler.abort(0) is False
