"""Several samples of each prompt, in real arms: who holds copies, who shares, what is compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from arm_runs import Run, run_arms_here

from experiment.config.schema import Config
from experiment.events import ArmFailed
from experiment.workload.prepared import Prepared
from experiment.workload.requests import make_requests, make_workload
from kvsim.core.blocks import blocks_needed

PROMPTS = {"a": 18, "b": 5}
NEW, LENGTH, BLOCK, N = 8, 32, 4, 3
VOCABULARY = 50257
RANDOM = {"n": N, "temperature": 0.9, "top_k": 500, "top_p": 0.95, "seed": 5}
# Every eighth token stops a request: rows of a batch end one after another.
STOPS = list(range(0, VOCABULARY, 8))
Make = Callable[..., Run]


@pytest.fixture(scope="module")
def make(runs: Path, prepared: Prepared) -> Make:
    def run(name: str, arms: list[str], budget: object = "auto", **sampling: Any) -> Run:
        config = Config.model_validate(
            {
                "model": {"name": "tiny-gpt2"},
                "sampling": sampling,
                "cache": {"block_size": BLOCK, "max_length": LENGTH, "budget": budget},
                "run": {"arms": arms, "device": "cpu", "threads": 1},
            }
        )

        def encode(text: str) -> list[int]:
            return [(7919 * i + ord(text)) % VOCABULARY for i in range(PROMPTS[text])]

        requests = make_requests(list(PROMPTS), encode, VOCABULARY, NEW, LENGTH, config.sampling.n)
        workload = make_workload(config, requests, prepared.model.slot_bytes, arms)
        fitted = Prepared(prepared.directory, prepared.model, workload)
        return run_arms_here(runs / name, config, fitted)

    return run


@pytest.fixture(scope="module")
def random(make: Make) -> Run:
    """Three random samples of each prompt, all of full length."""
    return make("random", ["contiguous.growing", "slabs", "paged"], **RANDOM)


@pytest.fixture(scope="module")
def stopping(make: Make) -> Run:
    """The same with stop tokens, in a budget of two and a half slabs."""
    budget = int(2.5 * LENGTH * 1024)
    return make(
        "stops",
        ["contiguous.batch", "contiguous.growing"],
        budget,
        stop_token_ids=STOPS,
        min_new_tokens=2,
        **RANDOM,
    )


@pytest.fixture(scope="module")
def greedy(make: Make) -> Run:
    """Two samples of each prompt without random numbers, with stop tokens."""
    arms = ["contiguous.sequential", "paged"]
    return make("greedy", arms, n=2, stop_token_ids=range(0, VOCABULARY, 2), min_new_tokens=3)


@pytest.fixture(params=["random", "stopping", "greedy"])
def each(request: pytest.FixtureRequest) -> Run:
    run: Run = request.getfixturevalue(request.param)
    return run


def test_every_arm_finishes_and_its_tables_are_its_tensors(each: Run) -> None:
    assert each.record.of(ArmFailed) == []
    ids = [request.id for request in each.workload.requests]
    for arm in each.results.arms:
        assert (arm.status, arm.problems) == ("finished", []), arm.arm
        assert sorted(each.tokens(arm.arm)) == ids
        rows = [row for row in each.rows(arm.arm) if row.tokens]
        assert [row.witness for row in rows] == [row.written for row in rows], arm.arm


def test_a_contiguous_cache_holds_a_copy_for_each_sample_and_blocks_share_the_prompt(
    random: Run, greedy: Run
) -> None:
    prompt = PROMPTS["a"]
    final = prompt + NEW - 1
    growing = max(row.live for row in random.rows("contiguous.growing"))
    assert growing == N * final
    sequential = greedy.arm("contiguous.sequential")
    assert (sequential.blocks, sequential.block_size) == (2, LENGTH)
    # Each sample has a block of its own from the first that it writes to.
    whole = prompt // BLOCK
    a = whole + N * (blocks_needed(final, BLOCK) - whole)
    b = 1 + N * (blocks_needed(PROMPTS["b"] + NEW - 1, BLOCK) - 1)
    assert max(row.allocated for row in random.rows("paged")) == (a + b) * BLOCK
    assert random.arm("paged").copied_blocks == 2 * (N - 1)


def test_samples_differ_and_are_the_same_in_arms_that_draw_the_same_numbers(random: Run) -> None:
    tokens = random.tokens("paged")
    assert tokens == random.tokens("slabs")
    assert len({tuple(each) for each in tokens.values()}) == len(tokens)
    assert random.tokens("contiguous.growing") != tokens


def test_tokens_of_other_random_numbers_are_not_compared(random: Run, greedy: Run) -> None:
    found = {one.arm: (one.reference, one.equal) for one in random.results.tokens}
    assert found == {
        "contiguous.growing": ("slabs", None),
        "paged": ("slabs", True),
    }
    assert all(one.reason is not None for one in random.results.not_compared)
    assert [(one.arm, one.equal) for one in greedy.results.tokens] == [("paged", True)]


def test_greedy_samples_of_a_prompt_are_equal_and_stop_alike_in_both_arms(greedy: Run) -> None:
    tokens = greedy.tokens("paged")
    assert tokens == greedy.tokens("contiguous.sequential")
    assert (tokens[0], tokens[2]) == (tokens[1], tokens[3])
    lengths = {len(each) for each in tokens.values()}
    assert min(lengths) >= 3
    assert min(lengths) < NEW


def test_a_stop_token_ends_a_sample_and_not_before_the_least_length(stopping: Run) -> None:
    stops = set(STOPS)
    for arm in stopping.arms:
        tokens = stopping.tokens(arm)
        for each in tokens.values():
            assert not stops & set(each[:-1])
            assert 2 <= len(each) <= NEW
            assert len(each) == NEW or each[-1] in stops
        assert len({len(each) for each in tokens.values()}) > 1
    for arm in ("contiguous.batch", "contiguous.growing"):
        assert max(row.finished for row in stopping.rows(arm)) > 0
    assert stopping.pool("contiguous.batch").blocks == 2


def test_what_fits_counts_the_whole_blocks_of_a_prompt_once(random: Run) -> None:
    assert random.arm("slabs").fits == 2 * N
    # 48 blocks; the samples of a: 7 + 3 + 3, of b: 3 + 2 + 2: 20 for six samples.
    assert random.arm("paged").fits == 2 * 6 + 1
