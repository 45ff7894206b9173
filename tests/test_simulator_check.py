"""A run beside the simulator: equal where it must be, and seen where it is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from event_makers import (
    BATCH,
    PAGED,
    TOKENS,
    arm_events,
    changed,
    head,
    plans_of,
    record,
    whole_run,
)

from experiment.analysis.arm_results import arm_results
from experiment.analysis.results import ArmResult, SimulatorCheck
from experiment.events import (
    EngineReported,
    Event,
    PoolReserved,
    RequestFinished,
    RunStarted,
    Step,
)
from kvsim.accounting.ledger import PoolShape
from kvsim.core.limits import SchedulerConfig
from kvsim.core.step import StepPlan

VLLM = "vllm"
# Five blocks of 2 slots that requests can have, and the null block.
SHAPE = PoolShape(6, 2, 4, engine_blocks=1)


def plans(config: SchedulerConfig, news: tuple[int, int] = (3, 3)) -> list[StepPlan]:
    """What an engine of five blocks does with prompts of 2 and 4 tokens."""
    return plans_of(zip((2, 4), news, strict=True), 5, 2, config)


def vllm_run(made: list[StepPlan], tokens: dict[int, list[int]] | None = None) -> list[Event]:
    events = [*head(), *arm_events(VLLM, SHAPE, made, tokens or TOKENS)]
    return changed(
        events, PoolReserved, lambda pool: pool.model_copy(update={"engine_blocks": 1}), VLLM
    )


def check(events: list[Event], arm: str = VLLM) -> SimulatorCheck:
    found = next(one for one in arm_results(record(events)) if one.arm == arm).simulator
    assert found is not None
    return found


def said(arguments: dict[str, Any]) -> EngineReported:
    return EngineReported(
        arm=VLLM, versions={}, arguments=arguments, variables={}, blocks=6, block_size=2,
        tokens=None, max_concurrency=None, max_length=8, rank_bytes=[], load_s=0, compile_s=0,
        cache_s=0, capture_s=0, first_request_s=0,
    )  # fmt: skip


def test_our_engine_is_met_block_for_block_and_padded_batches_are_not_asked() -> None:
    arms: dict[str, ArmResult] = {arm.arm: arm for arm in arm_results(record(whole_run()))}
    assert arms[BATCH].simulator is None
    found = arms[PAGED].simulator
    assert found is not None
    assert (found.agrees, found.equal_steps, found.steps) == (True, 4, 4)
    assert found.text.key == "simulator.same"
    # The last plan computes nothing: elsewhere it is no step.
    assert (found.text.params["n"], found.text.params["steps"]) == (4, 3)


def test_a_plan_of_ours_that_is_another_one_is_named() -> None:
    def one_more(step: Step) -> Step:
        return step.model_copy(update={"plan": replace(step.plan, waiting=1)})

    found = check(changed(whole_run(), Step, one_more, PAGED, 2), PAGED)
    assert (found.agrees, found.equal_steps) == (False, 2)
    assert found.text.params["step"] == 2
    assert found.text.params["part"]["key"] == "simulator.part_waiting"


def test_another_engine_that_does_the_same_differs_by_nothing() -> None:
    found = check(vllm_run(plans(SchedulerConfig())))
    assert (found.agrees, found.mean_points, found.most_points) == (True, 0, 0)
    assert (found.usable_blocks, found.simulated_steps) == (5, found.steps)
    assert found.preempted == (0, 0)
    assert found.curve[-1] == (found.steps - 1, 0, 0)
    assert max(blocks for _, blocks, _ in found.curve) == 5


def test_another_engine_that_does_less_at_a_time_is_too_far_away() -> None:
    # One after the other: 1, 2, 2 and 2, 3, 3 blocks; side by side: 3, 5, 5 and nothing more.
    found = check(vllm_run(plans(SchedulerConfig(max_num_seqs=1))))
    assert found.curve == [
        (0, 1, 3), (1, 2, 5), (2, 2, 5), (3, 2, 0), (4, 3, 0), (5, 3, 0), (6, 0, 0)
    ]  # fmt: skip
    assert (found.agrees, found.text.params["allowed"]["key"]) == (False, "simulator.beyond")
    assert found.mean_points == pytest.approx(100 * (2 + 3 + 3 + 2 + 3 + 3 + 0) / 5 / 7)
    assert (found.most_points, found.worst_step) == (60, 1)


def test_limits_that_the_engine_was_given_hold_for_the_simulator() -> None:
    events = vllm_run(plans(SchedulerConfig(max_num_seqs=1)))
    assert check([*events, said({"max_num_seqs": 1})]).mean_points == 0
    # An argument that was left to the engine is none of ours.
    assert check([*events, said({"max_num_seqs": None})]).agrees is False


def test_a_request_that_stopped_early_asks_for_what_it_got() -> None:
    events = vllm_run(plans(SchedulerConfig(), news=(3, 1)), {0: [1, 2, 3], 1: [4]})
    assert check(events).mean_points == 0


@pytest.mark.parametrize(
    ("kind", "update", "key"),
    [
        (RequestFinished, {"tokens": []}, "simulator.unfinished"),
        (PoolReserved, {"engine_blocks": 6}, "simulator.failed"),
    ],
)
def test_what_cannot_be_compared_is_not_judged(kind: type, update: Any, key: str) -> None:
    events = vllm_run(plans(SchedulerConfig()))
    found = check(changed(events, kind, lambda e: e.model_copy(update=update), VLLM))
    assert (found.agrees, found.mean_points, found.text.key) == (None, None, key)


def test_a_config_of_another_version_is_not_guessed() -> None:
    events = [
        event.model_copy(update={"config": {"engine": {"max_num_seqs": "many"}}})
        if isinstance(event, RunStarted)
        else event
        for event in vllm_run(plans(SchedulerConfig()))
    ]
    assert check(events).text.key == "simulator.other_version"
