"""The paged engine against plain Transformers, token by token, and against its own books."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from experiment.engine.engine import Engine
from experiment.engine.sampling import InvalidLogitsError
from experiment.gpucheck.tiny_models import FAMILIES, POSITIONS, VOCABULARY, make_engine, solo
from kvsim.accounting.ledger import Ledger, PoolShape
from kvsim.accounting.recount import recount
from kvsim.core.blocks import blocks_needed
from kvsim.core.request import final_tokens
from kvsim.core.scheduler import RequestRefusedError
from kvsim.core.step import FinishReason, StepPlan

Request = tuple[list[int], int]


@dataclass(frozen=True)
class Traffic:
    """Requests, and at which step each arrives; request ids are positions in the list."""

    requests: list[Request]
    arrivals: list[int]


def random_traffic(seed: int) -> Traffic:
    """Up to six requests that arrive in any order over the first steps."""
    draw = random.Random(seed)
    requests = [
        (draw.choices(range(VOCABULARY), k=draw.randint(1, 40)), draw.randint(1, 12))
        for _ in range(draw.randint(2, 6))
    ]
    return Traffic(requests, [draw.choice((0, 0, 0, draw.randint(1, 9))) for _ in requests])


def largest_need(traffic: Traffic, block_size: int) -> int:
    """Blocks without which one of the requests could never run."""
    return max(
        blocks_needed(final_tokens(len(prompt), new), block_size)
        for prompt, new in traffic.requests
    )


def run(engine: Engine, traffic: Traffic) -> list[StepPlan]:
    """Run to the end; after every step tensors, tables and ledger must agree."""
    shape = PoolShape(engine.pool.num_blocks, engine.pool.block_size, 1)
    ledger = Ledger(shape)
    plans: list[StepPlan] = []
    while engine.scheduler.has_work or len(plans) <= max(traffic.arrivals):
        for request, step in enumerate(traffic.arrivals):
            if step == len(plans):
                engine.add(request, *traffic.requests[request])
        outcome = engine.execute()
        plans.append(outcome.plan)
        counts = ledger.apply(outcome.plan)
        engine.blocks.check_integrity()
        assert engine.pool.written_slots() == ledger.written_slots
        assert counts == recount(shape, ledger.owners)
        assert counts.reserved == shape.slots
        assert ledger.tables() == {r: tuple(engine.blocks.table(r)) for r in engine.blocks.owners}
        engine.complete(outcome)
        engine.blocks.check_integrity()
    assert engine.blocks.num_free == engine.blocks.num_blocks
    assert engine.pool.written_slots() == 0
    return plans


def assert_tokens_are_solo_tokens(engine: Engine, family: str, traffic: Traffic) -> None:
    for request, (prompt, new) in enumerate(traffic.requests):
        assert engine.generated(request) == solo(family, prompt, new), request


@pytest.mark.parametrize("block_size", [1, 3, 16, POSITIONS])
@pytest.mark.parametrize("budget", [3, 17, 2048])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_request_generates_what_it_generates_alone(
    family: str, block_size: int, budget: int
) -> None:
    for seed in range(2):
        traffic = random_traffic(1000 * budget + 10 * block_size + seed)
        blocks = sum(
            blocks_needed(final_tokens(len(prompt), new), block_size)
            for prompt, new in traffic.requests
        )
        engine = make_engine(family, blocks, block_size, max_num_batched_tokens=budget)
        plans = run(engine, traffic)
        assert not any(plan.preempted for plan in plans)
        assert max(plan.tokens for plan in plans) <= budget
        assert_tokens_are_solo_tokens(engine, family, traffic)


@pytest.mark.parametrize("block_size", [1, 3, 16])
@pytest.mark.parametrize("family", FAMILIES)
def test_preemption_changes_no_token(family: str, block_size: int) -> None:
    preempted = 0
    for seed in range(4):
        traffic = random_traffic(seed)
        blocks = largest_need(traffic, block_size) + 1
        budget = (7, 2048)[seed % 2]
        engine = make_engine(family, blocks, block_size, max_num_batched_tokens=budget)
        preempted += sum(len(plan.preempted) for plan in run(engine, traffic))
        assert_tokens_are_solo_tokens(engine, family, traffic)
    assert preempted > 0


def test_a_pool_of_slabs_runs_one_request_after_another_where_it_holds_one() -> None:
    traffic = random_traffic(3)
    engine = make_engine("gpt2", 1, POSITIONS)
    assert max(len(plan.chunks) for plan in run(engine, traffic)) == 1
    assert_tokens_are_solo_tokens(engine, "gpt2", traffic)


@pytest.mark.parametrize("limit", [1, 2])
def test_the_sequence_limit_changes_no_token(limit: int) -> None:
    traffic = random_traffic(5)
    engine = make_engine("llama", 200, 4, max_num_seqs=limit)
    assert max(len(plan.chunks) for plan in run(engine, traffic)) == limit
    assert_tokens_are_solo_tokens(engine, "llama", traffic)


def test_a_stop_token_ends_a_request_with_that_token_as_its_last() -> None:
    prompt = list(range(1, 9))
    alone = solo("gpt2", prompt, 12)
    eos = alone[4]
    end = alone.index(eos) + 1
    engine = make_engine("gpt2", 20, 4, eos=eos)
    engine.add(0, prompt, 12)
    finishes = []
    while engine.scheduler.has_work:
        finishes += engine.step()[1]
    assert engine.generated(0) == alone[:end]
    assert end < 12
    assert [(finish.request, finish.reason) for finish in finishes] == [(0, FinishReason.STOP)]


def test_an_aborted_request_leaves_the_others_as_they_are() -> None:
    traffic = Traffic([(list(range(1, 30)), 9), (list(range(40, 60)), 9)], [0, 0])
    engine = make_engine("qwen2", 30, 3, max_num_batched_tokens=25)
    for request, (prompt, new) in enumerate(traffic.requests):
        engine.add(request, prompt, new)
    engine.step()
    assert engine.abort(0) is True
    while engine.scheduler.has_work:
        engine.step()
    assert engine.generated(0) == []
    assert engine.generated(1) == solo("qwen2", *traffic.requests[1])
    assert engine.abort(0) is False


def test_an_id_in_use_is_refused_until_it_is_forgotten() -> None:
    engine = make_engine("gpt2", 4, 4)
    engine.add(0, [1, 2], 2)
    with pytest.raises(ValueError, match="already"):
        engine.add(0, [3], 2)
    while engine.scheduler.has_work:
        engine.step()
    with pytest.raises(ValueError, match="already"):
        engine.add(0, [3], 2)
    engine.forget(0)
    engine.add(0, [3, 4], 2)
    while engine.scheduler.has_work:
        engine.step()
    assert engine.generated(0) == solo("gpt2", [3, 4], 2)


def test_a_request_that_can_never_fit_is_refused_and_leaves_no_trace() -> None:
    engine = make_engine("gpt2", 2, 4)
    with pytest.raises(RequestRefusedError):
        engine.add(0, list(range(8)), 2)
    engine.add(0, list(range(8)), 1)
    assert engine.scheduler.waiting == (0,)


def test_reading_a_slot_that_nobody_wrote_is_an_error_and_no_token() -> None:
    engine = make_engine("llama", 8, 4)
    engine.add(0, list(range(1, 8)), 4)
    engine.step()
    engine.pool.poison([engine.blocks.table(0)[0]])
    with pytest.raises(InvalidLogitsError):
        engine.step()
