"""The event log of whole runs, replayed: difference 0 at every step."""

from __future__ import annotations

import pytest
from arm_runs import Run

from experiment.config.schema import Config
from kvsim.core.limits import SchedulerConfig
from kvsim.core.prefix import KeyChain
from kvsim.core.request import Keys
from kvsim.sim.replay import RecordedRequest, ReplayResult, replay_run


def limits(config: Config, watermark: int) -> SchedulerConfig:
    return SchedulerConfig(**config.engine.scheduling(), watermark_blocks=watermark)


def replayed(run: Run, config: Config, arm: str) -> tuple[int, ReplayResult]:
    pool, plans = run.pool(arm), run.plans(arm)
    generated = run.tokens(arm)

    def keys(number: int, tokens: list[int]) -> Keys:
        chain = KeyChain(pool.block_size)
        whole = [*tokens, *generated[number]]
        return lambda count: chain.keys(whole, count)

    requests = [
        RecordedRequest(r.id, len(r.token_ids), r.max_new_tokens, keys=keys(r.id, r.token_ids))
        for r in run.workload.requests
        if r.sample_of is None
    ]
    told = limits(config, pool.watermark_blocks)
    return len(plans), replay_run(plans, requests, pool.blocks, pool.block_size, told)


@pytest.mark.parametrize(
    ("name", "arm"), [("worked_example", "paged"), ("crowded", "paged"), ("crowded", "slabs")]
)
def test_the_log_of_a_run_replays_without_a_difference(
    request: pytest.FixtureRequest, everything: Config, name: str, arm: str
) -> None:
    run: Run = request.getfixturevalue(name)
    count, replay = replayed(run, everything, arm)
    assert count > 30
    assert replay == ReplayResult(count, None)
    found = run.arm(arm).simulator
    assert found is not None
    assert (found.agrees, found.equal_steps) == (True, count)


def test_the_crowded_run_preempts(crowded: Run) -> None:
    """So that its replay means something."""
    assert any(plan.preempted for plan in crowded.plans("paged"))
