"""The paged engine against plain Transformers, token by token, and against its own books.

No arrangement of blocks may change a token: sharing, copying, swapping, priorities, preemption.
"""

from __future__ import annotations

import pytest
from random_jobs import Job, count_ops, needs, random_jobs, run
from tiny_engine import finish, make_engine, solo

from experiment.engine.engine import Engine
from experiment.engine.sampling import InvalidLogitsError
from experiment.gpucheck.tiny_models import FAMILIES, POSITIONS
from kvsim.core.request import final_tokens
from kvsim.core.step import FinishReason, OpKind


def assert_solo_tokens(engine: Engine, family: str, jobs: dict[int, Job]) -> None:
    for request, job in jobs.items():
        alone = solo(family, job.prompt, job.new)
        for sample in (request, *job.children):
            assert engine.generated(sample) == alone, sample


@pytest.mark.parametrize("block_size", [1, 3, 16, POSITIONS])
@pytest.mark.parametrize("budget", [3, 17, 2048])
def test_every_request_generates_what_it_generates_alone(block_size: int, budget: int) -> None:
    for seed, family in enumerate(FAMILIES):
        jobs = random_jobs(1000 * budget + 10 * block_size + seed)
        blocks = sum(needs(jobs, block_size))
        engine = make_engine(family, blocks, block_size, max_num_batched_tokens=budget)
        plans = run(engine, jobs)
        assert not any(plan.preempted for plan in plans)
        assert max(plan.tokens for plan in plans) <= budget
        assert_solo_tokens(engine, family, jobs)


@pytest.mark.parametrize("block_size", [1, 4, 8])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_prefix_hit_changes_no_token(family: str, block_size: int) -> None:
    hits = shared = 0
    for seed in range(4):
        jobs = random_jobs(seed)
        blocks = max(needs(jobs, block_size)) * (1 + seed)
        engine = make_engine(family, blocks, block_size, prefix_caching=True)
        plans = run(engine, jobs)
        assert_solo_tokens(engine, family, jobs)
        stats = engine.scheduler.stats
        hits += stats.hit_cross + stats.hit_batch
        shared += count_ops(plans, OpKind.SHARE) * block_size
        assert stats.queried == sum(len(job.prompt) for job in jobs.values())
    assert hits > 0
    assert shared >= hits


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("family", FAMILIES)
def test_forks_share_blocks_and_copy_when_they_write(family: str, block_size: int) -> None:
    copies = 0
    for seed in range(5):
        jobs = random_jobs(100 + seed, forks=True)
        engine = make_engine(family, 300, block_size, max_num_batched_tokens=(9, 512)[seed % 2])
        copies += count_ops(run(engine, jobs), OpKind.COPY)
        assert_solo_tokens(engine, family, jobs)
    assert copies > 0 or block_size == 1  # blocks of one slot are never partly written


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("caching", [False, True])
def test_preemption_of_either_kind_changes_no_token(
    policy: str, preemption: str, caching: bool
) -> None:
    preempted = swapped = 0
    for seed in range(10):
        jobs = random_jobs(200 + seed, forks=seed % 2 == 1)
        block_size = (1, 4, 5)[seed % 3]
        engine = make_engine(
            FAMILIES[seed % len(FAMILIES)],
            max(needs(jobs, block_size)) + seed % 3,
            block_size,
            policy=policy,
            preemption=preemption,
            host_blocks=40 if preemption == "swap" else 0,
            prefix_caching=caching,
            max_num_batched_tokens=(6, 512)[seed % 2],
            watermark_blocks=seed % 2,
        )
        plans = run(engine, jobs)
        assert_solo_tokens(engine, FAMILIES[seed % len(FAMILIES)], jobs)
        preempted += sum(len(plan.preempted) for plan in plans)
        swapped += count_ops(plans, OpKind.SWAP_OUT)
        assert engine.scheduler.host is None or not engine.scheduler.host.owners
    assert preempted > 0
    assert (swapped > 0) == (preemption == "swap")


def test_a_full_prompt_hit_still_computes_its_last_token() -> None:
    prompt = list(range(1, 17))
    engine = make_engine("gpt2", 40, 4, prefix_caching=True)
    engine.add(0, prompt, 3)
    finish(engine)
    engine.add(1, prompt, 3)
    outcome = engine.execute()
    assert [(c.start, c.count) for c in outcome.plan.chunks] == [(12, 4)]
    engine.complete(outcome)
    assert engine.scheduler.stats.hit_cross == 12


def test_the_second_turn_of_a_conversation_finds_prompt_and_answer() -> None:
    engine = make_engine("llama", 60, 4, prefix_caching=True)
    first = list(range(2, 12))
    engine.add(0, first, 8)
    finish(engine)
    turn = [*first, *engine.generated(0), 5, 6, 7]
    engine.add(1, turn, 4)
    plan = engine.execute().plan
    written = final_tokens(len(first), 8)
    assert plan.chunks[0].start == written // 4 * 4


def test_abort_and_shutdown_give_everything_back_at_any_moment() -> None:
    for moment in range(12):
        jobs = random_jobs(300 + moment, forks=True)
        engine = make_engine("qwen2", 60, 4, prefix_caching=True, preemption="swap", host_blocks=9)
        for request, job in jobs.items():
            engine.add(request, job.prompt, job.new, children=job.children)
        for _ in range(moment):
            if engine.scheduler.has_work:
                engine.step()
        engine.abort(0)
        engine.shutdown()
        assert (engine.blocks.num_free, engine.scheduler.running) == (60, ())
        engine.blocks.check_integrity()
        assert engine.pool.written_slots() == engine.blocks.num_cached * 4


def test_a_stop_token_ends_a_request_with_that_token_as_its_last() -> None:
    prompt = list(range(1, 9))
    alone = solo("gpt2", prompt, 12)
    eos = alone[4]
    end = alone.index(eos) + 1
    engine = make_engine("gpt2", 20, 4, eos=[eos])
    engine.add(0, prompt, 12)
    finishes = []
    while engine.scheduler.has_work:
        finishes += engine.step()[1]
    assert engine.generated(0) == alone[:end]
    assert end < 12
    assert [(finish.request, finish.reason) for finish in finishes] == [(0, FinishReason.STOP)]


def test_reading_a_slot_that_nobody_wrote_is_an_error_and_no_token() -> None:
    engine = make_engine("llama", 8, 4)
    engine.add(0, list(range(1, 8)), 4)
    engine.step()
    engine.pool.poison([engine.blocks.table(0)[0]])
    with pytest.raises(InvalidLogitsError):
        engine.step()
