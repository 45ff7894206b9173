"""24: a long prompt is computed in short pieces while others wait or run."""

from __future__ import annotations

import pytest
from scheduling import add, chunks, make_scheduler, step
from tiny_engine import make_engine, solo

from kvsim.core.scheduler import SchedulerConfig


def test_a_long_prefill_leaves_room_for_those_behind_it() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=12, long_prefill_token_threshold=5)
    add(scheduler, (14, 2), (4, 2), (6, 1))
    assert [chunks(step(scheduler)) for _ in range(3)] == [
        [(0, 0, 5, False), (1, 0, 4, True), (2, 0, 3, False)],
        [(0, 5, 5, False), (1, 4, 1, True), (2, 3, 3, True)],
        [(0, 10, 4, True)],
    ]


def test_without_a_threshold_the_first_takes_the_whole_budget() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=12)
    add(scheduler, (14, 2), (4, 2))
    assert chunks(step(scheduler)) == [(0, 0, 12, False)]


def test_a_lone_request_is_not_held_back() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=12, long_prefill_token_threshold=5)
    add(scheduler, (14, 2))
    assert chunks(step(scheduler)) == [(0, 0, 12, False)]


def test_a_negative_threshold_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        SchedulerConfig(long_prefill_token_threshold=-1)


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
