"""What the engine did, planned anew from lengths and limits: the same blocks at every step."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from random_jobs import Job, needs, random_jobs, run
from tiny_engine import make_engine

from experiment.engine.engine import Engine
from experiment.gpucheck.tiny_models import VOCABULARY
from kvsim.core.prefix import KeyChain
from kvsim.core.request import Keys
from kvsim.core.step import Chunk, OpKind, StepPlan
from kvsim.sim.replay import RecordedRequest, ReplayResult, replay_run

SIZE = 4


def keys_of(tokens: Sequence[int]) -> Keys:
    chain = KeyChain(SIZE)
    return lambda count: chain.keys(tokens, count)


def recorded_requests(engine: Engine, jobs: dict[int, Job]) -> Iterator[RecordedRequest]:
    for number, job in jobs.items():
        tokens = [*job.prompt, *engine.generated(number)]
        yield RecordedRequest(
            number, len(job.prompt), job.new, job.arrival, job.priority, keys=keys_of(tokens)
        )


def child_keys(engine: Engine, jobs: dict[int, Job]) -> dict[int, Keys]:
    return {
        child: keys_of([*job.prompt, *engine.generated(child)])
        for job in jobs.values()
        for child in job.children
    }


def replayed(
    engine: Engine, jobs: dict[int, Job], plans: list[StepPlan], **keys: Any
) -> ReplayResult:
    requests = list(recorded_requests(engine, jobs))
    return replay_run(
        plans, requests, engine.blocks.num_blocks, SIZE, engine.scheduler.config,
        child_keys(engine, jobs), **keys,
    )  # fmt: skip


def kinds(plans: list[StepPlan]) -> set[OpKind]:
    return {op.kind for plan in plans for op in plan.ops}


LIMITS: tuple[dict[str, Any], ...] = (
    {},
    {"prefix_caching": True},
    {"preemption": "swap", "host_blocks": 30, "prefix_caching": True},
    {"policy": "priority", "max_num_batched_tokens": 9, "max_num_seqs": 3},
    {"watermark_blocks": 1, "long_prefill_token_threshold": 3, "eos": [7]},
)


@pytest.mark.parametrize("limits", LIMITS)
def test_random_runs_of_the_engine_replay_without_a_difference(limits: dict[str, Any]) -> None:
    seen: set[OpKind] = set()
    for seed in range(6):
        jobs = random_jobs(seed, forks=True)
        blocks = max(needs(jobs, SIZE)) + seed % 3
        engine = make_engine("gpt2", blocks, SIZE, **limits)
        plans = run(engine, jobs)
        seen |= kinds(plans)
        assert replayed(engine, jobs, plans) == ReplayResult(len(plans), None), seed
    expected = {OpKind.ALLOCATE, OpKind.FREE, OpKind.SHARE, OpKind.COPY}
    assert expected <= seen
    assert (OpKind.SWAP_OUT in seen) == (limits.get("preemption") == "swap")


def test_beam_searches_replay_without_a_difference() -> None:
    draw = random.Random(1)
    for seed in range(4):
        engine = make_engine("llama", 26 + seed, SIZE, max_num_seqs=6)
        requests = []
        for number in range(3):
            prompt = draw.choices(range(VOCABULARY), k=draw.randint(2, 14))
            new = draw.randint(3, 9)
            engine.add_beam_search(number, prompt, new, 3, range(0, VOCABULARY, 9))
            requests.append(RecordedRequest(number, len(prompt), new, beams=3))
        plans = []
        while engine.scheduler.has_work:
            outcome, _ = engine.step()
            plans.append(outcome.plan)
        assert OpKind.SHARE in kinds(plans)
        result = replay_run(plans, requests, 26 + seed, SIZE, engine.scheduler.config)
        assert result == ReplayResult(len(plans), None)


def test_aborts_are_taken_from_the_record() -> None:
    engine = make_engine("gpt2", 20, SIZE)
    jobs = {number: Job([number + 1] * 6, 8) for number in range(3)}
    for number, job in jobs.items():
        engine.add(number, job.prompt, job.new)
    plans = []
    while engine.scheduler.has_work:
        if len(plans) == 3:
            engine.abort(1)
        outcome = engine.execute()
        plans.append(outcome.plan)
        if len(plans) == 5:
            engine.abort(0)  # while its step runs
        engine.complete(outcome)
    assert replayed(engine, jobs, plans) == ReplayResult(len(plans), None)


def test_a_difference_is_found_and_named() -> None:
    jobs = random_jobs(2)
    engine = make_engine("gpt2", max(needs(jobs, SIZE)) + 2, SIZE)
    plans = run(engine, jobs)
    step = next(plan for plan in plans if any(op.kind is OpKind.ALLOCATE for op in plan.ops))
    (op, *others) = step.ops
    wrong = replace(step, ops=(op._replace(blocks=(*op.blocks[::-1], 0)), *others))
    result = replayed(engine, jobs, [wrong if plan is step else plan for plan in plans])
    assert result.difference is not None
    assert (result.difference.step, result.difference.part) == (step.step, "ops")
    assert result.equal == step.step
    short = replayed(engine, jobs, plans[:-2])
    assert short.difference is not None
    assert short.difference.part == "missing"
    longer = replace(plans[3], chunks=(*plans[3].chunks, Chunk(99, 0, 1, samples=False)))
    result = replayed(engine, jobs, [*plans[:3], longer])
    assert result.difference is not None
    assert (result.difference.step, result.difference.part) == (3, "chunks")
