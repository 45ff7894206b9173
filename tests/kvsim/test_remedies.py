"""A remedy is a change that was simulated, and does what is said of it."""

from __future__ import annotations

import pytest

from kvsim.core.blocks import BlockPool
from kvsim.core.limits import SchedulerConfig
from kvsim.planning.remedies import Outcome, Remedy, Trial, find_remedies
from kvsim.sim.occupancy import schedule_all
from kvsim.sim.replay import RecordedRequest

# Prompt and new tokens; see test_simulator_policies.py.
CROWD = [
    (700, 60), (650, 80), (600, 100), (720, 40), (500, 120), (680, 60), (640, 90), (710, 30),
    (560, 110), (690, 70),
]  # fmt: skip


def scheduled(trial: Trial) -> Outcome:
    """Ten requests in blocks of 32, 256 tokens a step; the duration is in steps."""
    config = SchedulerConfig(
        max_num_seqs=trial.max_num_seqs, max_num_batched_tokens=256,
        watermark_blocks=trial.watermark_blocks, admission=trial.admission,
    )  # fmt: skip
    requests = [RecordedRequest(n, prompt, new) for n, (prompt, new) in enumerate(CROWD)]
    held, preempted = schedule_all(BlockPool(trial.blocks, 32), requests, config)
    return Outcome(preempted, sum(map(bool, held)))


def test_each_remedy_ends_preemption_when_it_is_applied() -> None:
    given = Trial(63, 256, 0)
    before = scheduled(given)
    assert before.preemptions == 5
    found = {remedy.change: remedy for remedy in find_remedies(given, 3, scheduled)}
    assert found.keys() == {"blocks", "max_num_seqs", "watermark_blocks"}
    for remedy in found.values():
        changed = given._replace(**{remedy.change: remedy.value})
        assert scheduled(changed) == (0, remedy.duration, None)
    assert found["max_num_seqs"].value < 3
    assert 63 < found["blocks"].value < 126
    assert found["watermark_blocks"].value < 32


def test_another_admission_is_a_remedy_and_what_it_leaves_is_told() -> None:
    given = Trial(63, 256, 0, "first_chunk")
    assert scheduled(given).preemptions == 38
    (admission,) = [r for r in find_remedies(given, 9, scheduled) if r.change == "admission"]
    assert (admission.preemptions, admission.duration) == scheduled(Trial(63, 256, 0))[:2]


@pytest.mark.parametrize("needed", [103, 109, 110, 149, 800])
def test_values_are_drawn_near_to_the_least_that_does(needed: int) -> None:
    def attempt(trial: Trial) -> Outcome:
        return Outcome(int(trial.blocks < needed), 1.0)

    (blocks,) = [r for r in find_remedies(Trial(100, 1, 0), 1, attempt) if r.change == "blocks"]
    assert needed <= blocks.value <= needed * 1.05


def test_more_memory_than_there_is_is_not_tried() -> None:
    tried: list[int] = []

    def attempt(trial: Trial) -> Outcome:
        tried.append(trial.blocks)
        return Outcome(7, 2.0)

    found = find_remedies(Trial(100, 1, 0), 1, attempt, most_blocks=130)
    assert max(tried) == 130
    assert Remedy("blocks", 130, 7, 2.0) in found
