"""Transformers' continuous batching as an arm: told block for block, equal to the other arms."""

from __future__ import annotations

from pathlib import Path

import pytest
from arm_runs import Run, make_config, run_arms, with_requests

from experiment.environment import Environment
from experiment.messages import message
from experiment.runner import Prepared
from kvsim.ledger import SlotState

ARM = "transformers_paged"
# Twelve blocks of eight slots, two of them its own: not all requests at once, some preempted.
REQUESTS = ((15, 34), (20, 3), (4, 40), (13, 1), (16, 40))


@pytest.fixture(scope="module")
def run(runs: Path, environment: Environment, prepared: Prepared) -> Run:
    config = make_config("tiny-gpt2", ("contiguous.sequential", "paged", ARM))
    fitted = with_requests(prepared, REQUESTS, slabs=1.5, max_length=64, block_size=8)
    return run_arms(runs / "transformers_paged", environment, config, fitted)


def test_it_generates_the_tokens_of_the_other_arms(run: Run) -> None:
    assert run.arm(ARM).problems == []
    assert run.tokens(ARM) == run.tokens("contiguous.sequential")


def test_its_pool_is_within_the_budget_its_trash_among_it(run: Run) -> None:
    pool, paged = run.pool(ARM), run.pool("paged")
    assert (pool.blocks, pool.engine_blocks) == (12, 2)
    assert pool.tensor_bytes == paged.tensor_bytes == 12 * 8 * pool.slot_bytes


def test_its_trash_is_never_handed_out(run: Run) -> None:
    handed = {block for plan in run.plans(ARM) for op in plan.ops for block in op.blocks}
    assert handed == set(range(2, 12))


def test_states_sum_to_the_pool_at_every_step(run: Run) -> None:
    rows = run.rows(ARM)
    for row in rows:
        assert sum(getattr(row, state.value) for state in SlotState) == 12 * 8
        assert row.engine == 16
    assert max(row.allocated for row in rows) > 60
    assert (rows[-1].allocated, rows[-1].live) == (0, 0)


def test_a_budget_that_its_trash_leaves_too_small_is_refused(
    runs: Path, environment: Environment, prepared: Prepared
) -> None:
    config = make_config("tiny-gpt2", (ARM,))
    fitted = with_requests(prepared, ((20, 30),), slabs=1, max_length=64, block_size=8)
    found = run_arms(runs / "transformers_paged_small", environment, config, fitted).results.arms[0]
    assert found.status == "failed"
    expected = message("error.transformers_paged_small", blocks=6, needed=7, tokens=49)
    assert found.reason == expected
