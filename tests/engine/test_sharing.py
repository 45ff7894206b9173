"""Sharing, copying, swapping, priorities: no arrangement of blocks may change a token."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

from experiment.engine.engine import Engine
from experiment.gpucheck.tiny_models import FAMILIES, VOCABULARY, make_engine, solo
from kvsim.accounting.ledger import Ledger, PoolShape
from kvsim.accounting.recount import recount
from kvsim.core.blocks import blocks_needed
from kvsim.core.request import final_tokens
from kvsim.core.step import OpKind, StepPlan


@dataclass(frozen=True)
class Job:
    """A request; ``children`` are further samples of its prompt."""

    prompt: list[int]
    new: int
    arrival: int = 0
    priority: int = 0
    children: tuple[int, ...] = ()


def random_jobs(seed: int, forks: bool = False) -> dict[int, Job]:
    """Requests of which many begin alike; ids of children follow those of all requests."""
    draw = random.Random(seed)
    stem = draw.choices(range(VOCABULARY), k=24)
    jobs: dict[int, Job] = {}
    count = draw.randint(3, 7)
    next_id = count
    for request in range(count):
        shared = stem[: draw.choice((0, 5, 8, 16, 24))]
        tail = draw.choices(range(VOCABULARY), k=draw.randint(1, 9))
        children: tuple[int, ...] = ()
        if forks and draw.random() < 0.6:
            children = tuple(range(next_id, next_id + draw.randint(1, 3)))
            next_id += len(children)
        jobs[request] = Job(
            prompt=shared + tail,
            new=draw.randint(1, 10),
            arrival=draw.choice((0, 0, draw.randint(1, 8))),
            priority=draw.randint(0, 2),
            children=children,
        )
    return jobs


def largest_need(jobs: dict[int, Job], block_size: int) -> int:
    """Blocks without which one of the requests could never run."""
    finals = (final_tokens(len(job.prompt), job.new) for job in jobs.values())
    return max(blocks_needed(final, block_size) for final in finals)


def run(engine: Engine, jobs: dict[int, Job]) -> list[StepPlan]:
    """Run to the end; after every step tensors, tables, ledger and recount must agree."""
    shape = PoolShape(engine.pool.num_blocks, engine.pool.block_size, 1)
    ledger = Ledger(shape)
    plans: list[StepPlan] = []
    last = max(job.arrival for job in jobs.values())
    while engine.scheduler.has_work or len(plans) <= last:
        assert len(plans) < 2000, "no progress"
        for request, job in jobs.items():
            if job.arrival == len(plans):
                kind: dict[str, Any] = {"children": job.children, "priority": job.priority}
                engine.add(request, job.prompt, job.new, **kind)
        outcome = engine.execute()
        plans.append(outcome.plan)
        counts = ledger.apply(outcome.plan)
        engine.blocks.check_integrity()
        assert counts == recount(shape, ledger.owners, ledger.cached)
        assert counts.reserved == shape.slots
        assert engine.pool.written_slots() == ledger.written_slots
        assert ledger.tables() == {r: tuple(engine.blocks.table(r)) for r in engine.blocks.owners}
        engine.complete(outcome)
    assert engine.blocks.num_free == engine.blocks.num_blocks
    assert len(ledger.cached) == engine.blocks.num_cached
    return plans


def assert_solo_tokens(engine: Engine, family: str, jobs: dict[int, Job]) -> None:
    for request, job in jobs.items():
        alone = solo(family, job.prompt, job.new)
        for sample in (request, *job.children):
            assert engine.generated(sample) == alone, sample


def count_ops(plans: list[StepPlan], kind: OpKind) -> int:
    return sum(len(op.blocks) for plan in plans for op in plan.ops if op.kind is kind)


@pytest.mark.parametrize("block_size", [1, 4, 8])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_prefix_hit_changes_no_token(family: str, block_size: int) -> None:
    hits = shared = 0
    for seed in range(4):
        jobs = random_jobs(seed)
        blocks = largest_need(jobs, block_size) * (1 + seed)
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
            largest_need(jobs, block_size) + seed % 3,
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
    while engine.scheduler.has_work:
        engine.step()
    engine.add(1, prompt, 3)
    outcome = engine.execute()
    assert [(c.start, c.count) for c in outcome.plan.chunks] == [(12, 4)]
    engine.complete(outcome)
    assert engine.scheduler.stats.hit_cross == 12


def test_the_second_turn_of_a_conversation_finds_prompt_and_answer() -> None:
    engine = make_engine("llama", 60, 4, prefix_caching=True)
    first = list(range(2, 12))
    engine.add(0, first, 8)
    while engine.scheduler.has_work:
        engine.step()
    turn = [*first, *engine.generated(0), 5, 6, 7]
    engine.add(1, turn, 4)
    plan = engine.execute().plan
    written = final_tokens(len(first), 8)
    assert plan.chunks[0].start == written // 4 * 4


def test_requests_with_different_salts_share_nothing() -> None:
    prompt = list(range(1, 17))
    engine = make_engine("gpt2", 40, 4, prefix_caching=True)
    for request, salt in enumerate("ab"):
        engine.add(request, prompt, 2, salt=salt)
    while engine.scheduler.has_work:
        engine.step()
    assert engine.scheduler.stats.hit_cross + engine.scheduler.stats.hit_batch == 0


def test_a_short_request_returns_while_a_long_one_still_runs() -> None:
    engine = make_engine("gpt2", 60, 4)
    engine.add(0, [1, 2, 3], 20)
    engine.add(1, [4, 5], 3)
    events = list(engine.stream())
    assert events.index((1, None)) < events.index((0, None)) - 10
    assert [token for request, token in events if request == 0 and token is not None] == solo(
        "gpt2", [1, 2, 3], 20
    )


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
        status = engine.status()
        assert (status.free_blocks, status.owners, status.running) == (60, {}, ())
        engine.blocks.check_integrity()
        assert engine.pool.written_slots() == status.cached_blocks * 4
