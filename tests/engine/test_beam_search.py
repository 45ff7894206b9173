"""Beam search over shared blocks against Transformers' own, sequence by sequence."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from checked_run import CheckedRun
from tiny_engine import geometry, solo

from experiment.engine.attention.interface import ATTENTION
from experiment.engine.engine import Engine
from experiment.engine.kv_pool import KVPool
from experiment.engine.model_runner import ModelRunner
from experiment.events.sampling import FIRST_BEAM_ID
from experiment.gpucheck.tiny_models import CONFIGS, FAMILIES, VOCABULARY, build
from kvsim.core.group import most_blocks
from kvsim.core.scheduler import RequestRefusedError, SchedulerConfig
from kvsim.core.step import FinishReason, OpKind

# Initialiser ranges: flat distributions, where beams change places often, and peaked ones.
FLAT, PEAKED = 0.08, 0.3


@dataclass(frozen=True)
class Search:
    """A prompt and how far to search."""

    prompt: tuple[int, ...]
    new: int


@cache
def model(family: str, spread: float, attention: str) -> Any:
    config = CONFIGS[family]()
    config.initializer_range = spread
    return build(config, attention)


def engine_for(
    family: str,
    spread: float,
    blocks: int,
    block_size: int,
    eos: Collection[int] = (),
    **limits: Any,
) -> Engine:
    config = SchedulerConfig(**limits)
    cpu = torch.device("cpu")
    pool = KVPool(geometry(family), blocks, block_size, torch.float32, cpu, config.host_blocks)
    return Engine(ModelRunner(model(family, spread, ATTENTION), pool), config, eos, VOCABULARY)


def searches(seed: int) -> list[Search]:
    """A few prompts; some begin alike."""
    draw = random.Random(seed)
    stem = draw.choices(range(VOCABULARY), k=9)
    jobs = []
    for _ in range(draw.randint(2, 4)):
        tail = draw.choices(range(VOCABULARY), k=draw.randint(1, 8))
        prompt = (*stem[: draw.choice((0, 4, 9))], *tail)
        jobs.append(Search(prompt, draw.randint(1, 12)))
    return jobs


@cache
def reference(
    family: str, spread: float, search: Search, width: int, ends: frozenset[int]
) -> tuple[list[tuple[int, ...]], list[float]]:
    """Hypotheses and scores of Transformers' own beam search, best first."""
    ids = torch.tensor([search.prompt])
    out = model(family, spread, "sdpa").generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=search.new,
        do_sample=False,
        num_beams=width,
        num_return_sequences=width,
        eos_token_id=sorted(ends) or None,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
    )
    rows = [tuple(row[len(search.prompt) :]) for row in out.sequences.tolist()]
    lengths = [next((i for i, t in enumerate(row, 1) if t in ends), len(row)) for row in rows]
    ended = [row[:end] for row, end in zip(rows, lengths, strict=True)]
    return ended, out.sequences_scores.tolist()


def need(search: Search, width: int, block_size: int) -> int:
    return most_blocks(len(search.prompt), search.new, width, block_size)


def some_eos(family: str, spread: float, search: Search, width: int) -> set[int]:
    """Two tokens that beams do meet."""
    sequences, _ = reference(family, spread, search, width, frozenset())
    return {row[len(row) // 2] for row in (sequences[0], sequences[-1][1:] or sequences[-1])}


def assert_as_transformers(
    engine: Engine, family: str, spread: float, jobs: list[Search], width: int
) -> None:
    for request, search in enumerate(jobs):
        ends = engine.eos_token_ids
        tokens, scores = reference(family, spread, search, width, ends)
        found = engine.hypotheses(request)
        assert [h.tokens for h in found] == tokens, request
        assert [h.score for h in found] == pytest.approx(scores, rel=1e-4, abs=1e-4)
        assert [h.stopped for h in found] == [not ends.isdisjoint(row) for row in tokens]
        assert engine.generated(request) == list(tokens[0])


@pytest.mark.parametrize("width", [2, 4, 6])
@pytest.mark.parametrize("spread", [FLAT, PEAKED])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_of_searches_finds_what_transformers_finds(
    family: str, spread: float, width: int
) -> None:
    stopped = copied = pruned = 0
    for seed, block_size in enumerate((1, 3, 4, 16)):
        jobs = searches(10 * width + seed)
        eos = some_eos(family, spread, jobs[0], width) if seed % 2 else ()
        budget = (2048, 7, 64, 11)[seed]
        blocks = sum(need(search, width, block_size) for search in jobs)
        engine = engine_for(family, spread, blocks, block_size, eos, max_num_batched_tokens=budget)
        for request, search in enumerate(jobs):
            engine.add_beam_search(request, search.prompt, search.new, width)
        run = CheckedRun(engine)
        run.to_the_end()
        assert_as_transformers(engine, family, spread, jobs, width)
        assert sorted(finish.request for finish in run.finished) == list(range(len(jobs)))
        stopped += sum(h.stopped for i in range(len(jobs)) for h in engine.hypotheses(i))
        copied += run.count(OpKind.COPY)
        pruned += sum(f.reason is FinishReason.PRUNED for p in run.plans for f in p.finished)
    assert min(stopped, copied, pruned) > 0


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("caching", [False, True])
def test_searches_that_fight_for_blocks_find_the_same(
    policy: Any, preemption: Any, caching: bool
) -> None:
    preempted = swapped = 0
    for seed in range(8):
        family, width, block_size = FAMILIES[seed % 4], (2, 4, 6)[seed % 3], (4, 1, 3)[seed % 3]
        jobs = searches(500 + seed)
        engine = engine_for(
            family,
            PEAKED,
            max(need(search, width, block_size) for search in jobs),
            block_size,
            some_eos(family, PEAKED, jobs[0], width) if seed % 2 else (),
            policy=policy,
            preemption=preemption,
            host_blocks=60 if preemption == "swap" else 0,
            prefix_caching=caching,
            max_num_batched_tokens=(width, 9, 512)[seed % 3],
            watermark_blocks=seed % 2,
        )
        alone = len(jobs), list(jobs[0].prompt), 6
        for request, search in enumerate(jobs):
            engine.add_beam_search(
                request, search.prompt, search.new, width, priority=seed % 2 - request
            )
        engine.add(*alone)
        run = CheckedRun(engine)
        plans = run.to_the_end()
        assert_as_transformers(engine, family, PEAKED, jobs, width)
        if not engine.eos_token_ids:
            # Both models of the family have the same weights.
            assert engine.generated(alone[0]) == solo(family, *alone[1:])
        preempted += sum(len(plan.preempted) for plan in plans)
        swapped += run.count(OpKind.SWAP_OUT)
    assert preempted > 0
    assert (swapped > 0) == (preemption == "swap")


def test_an_aborted_search_leaves_nothing_at_any_moment() -> None:
    for moment in range(14):
        engine = engine_for("qwen2", PEAKED, 40, 4, max_num_batched_tokens=8)
        for request in (0, 1):
            engine.add_beam_search(request, range(1, 11), 6, 4)
        run = CheckedRun(engine)
        for _ in range(moment):
            run.step()
        outcome = engine.execute()  # abort while a step is under way
        run.ledger.apply(outcome.plan)
        aborted = engine.abort(0)
        run.finished += engine.complete(outcome)
        assert not engine.abort(0)
        run.to_the_end()
        assert bool(engine.hypotheses(0)) == (not aborted)
        assert set(engine._generations) == {0, 1}
        assert [f.request for f in run.finished] == ([1] if aborted else [0, 1])


@pytest.mark.parametrize(
    ("blocks", "limits", "limit", "needed"),
    [
        (17, {}, "blocks", 18),
        (18, {"max_num_seqs": 3}, "seqs", 4),
        (18, {"max_num_batched_tokens": 3}, "tokens", 4),
    ],
)
def test_a_search_that_can_never_fit_is_refused_with_the_reason(
    blocks: int, limits: dict[str, int], limit: str, needed: int
) -> None:
    # 10 + 12 - 1 = 21 slots in 6 blocks of 4; 2 full blocks of the prompt stay shared: 2 + 4 * 4.
    engine = engine_for("gpt2", PEAKED, blocks, 4, **limits)
    with pytest.raises(RequestRefusedError) as caught:
        engine.add_beam_search(0, range(1, 11), 12, 4)
    assert (caught.value.limit, caught.value.needed) == (limit, needed)
    assert not engine.scheduler.has_work
    engine.add(0, [1, 2, 3], 2)  # the id is free


@pytest.mark.parametrize(("spread", "width"), [(PEAKED, 3), (FLAT, 2)])
def test_several_stop_tokens_widen_the_choice_as_they_do_in_transformers(
    spread: float, width: int
) -> None:
    search = Search(tuple(range(20, 31)), 10)
    free, _ = reference("gpt2", spread, search, width, frozenset())
    stops = frozenset({free[0][4], free[1][5], free[-1][6]})
    engine = engine_for("gpt2", spread, 60, 4)
    engine.add_beam_search(0, search.prompt, search.new, width, stops)
    pruned: set[tuple[int, ...]] = set()
    while engine.scheduler.has_work:
        outcome = engine.execute()
        pruned |= {tuple(engine.generated(beam)) for beam in outcome.pruned}
        engine.complete(outcome)
    tokens, scores = reference("gpt2", spread, search, width, stops)
    assert [h.tokens for h in engine.hypotheses(0)] == tokens
    assert [h.score for h in engine.hypotheses(0)] == pytest.approx(scores, rel=1e-4)
    ended = {h.tokens[:-1] for h in engine.hypotheses(0) if h.stopped}
    assert ended
    assert ended.isdisjoint(pruned)  # a beam that ends with a hypothesis is not pruned


def test_what_the_caller_may_not_ask() -> None:
    engine = engine_for("gpt2", PEAKED, 20, 4)
    with pytest.raises(ValueError, match="beams"):
        engine.add(FIRST_BEAM_ID, [1], 1)
    engine.add_beam_search(1, [1], 2, 2)
    with pytest.raises(ValueError, match="already"):
        engine.add_beam_search(1, [1], 2, 2)
