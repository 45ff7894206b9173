"""Transformers' continuous batching as an arm: told block for block, equal to the other arms."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from arm_runs import Run, make_config, run_arms, run_arms_here, with_requests

import experiment
from experiment.arms import transformers_paged
from experiment.arms.base import ArmRun
from experiment.arms.task import ArmTask
from experiment.arms.transformers_paged import _Prefix
from experiment.config.schema import Config
from experiment.events import Channel, ProfileRun, Reading
from experiment.machine.environment import Environment
from experiment.text.messages import message
from experiment.workload.first_prompts import NEW_TOKENS
from experiment.workload.prepared import Prepared
from kvsim.accounting.ledger import SlotState
from kvsim.core.prefix import PrefixStats
from kvsim.core.step import BlockOp, OpKind, StepPlan

ARM = "transformers_paged"
INPUTS = Channel.STATIC_INPUTS
# Twelve blocks of eight slots, two of them its own: not all requests at once, some preempted.
REQUESTS = ((15, 34), (20, 3), (4, 40), (13, 1), (16, 40))
# These begin with the same two blocks.
ALIKE = ((31, 30), (36, 3), (20, 40), (29, 1), (32, 32))


class Moved(ModuleType):
    """A Transformers that has its configuration in another place."""

    def __getattr__(self, name: str) -> Any:
        if name == "ContinuousBatchingConfig":
            raise AttributeError(name)
        return getattr(transformers, name)


@pytest.fixture(scope="module")
def run(runs: Path, prepared: Prepared) -> Run:
    config = make_config("tiny-gpt2", ("contiguous.sequential", "paged", ARM))
    fitted = with_requests(prepared, REQUESTS, slabs=1.5, max_length=64, block_size=8)
    return run_arms_here(runs / "transformers_paged", config, fitted)


def test_the_other_arms_start_where_transformers_has_none_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(experiment, "arms", experiment.arms)  # the new one replaces it there
    for name in [*sys.modules]:
        if f"{name}.".startswith("experiment.arms."):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "transformers", Moved("transformers"))
    assert "paged" in import_module("experiment.arms.functions").FUNCTIONS


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


def test_what_is_found_after_giving_way_is_told_apart_by_who_wrote_it() -> None:
    """Request 1 is a fork of 0: of its two full blocks the copied one is its own."""
    prefix = _Prefix(4)
    prefix.take(StepPlan(0, (BlockOp(OpKind.ALLOCATE, 0, (2, 3)),)), {0: 7}, ())
    forked = BlockOp(OpKind.SHARE, 1, (2, 3), tokens=6), BlockOp(OpKind.COPY, 1, (4,), (3,))
    prefix.take(StepPlan(1, forked), {}, {1: 0})
    back = BlockOp(OpKind.SHARE, 1, (2, 4), tokens=8)
    prefix.take(StepPlan(2, (back, BlockOp(OpKind.ALLOCATE, 1, (5,)))), {1: 9}, ())
    prefix.take(StepPlan(3, (BlockOp(OpKind.SHARE, 2, (2,), tokens=4),)), {2: 5}, ())
    expected = PrefixStats(queried=7 + 5, hit_cross=4, requeried=9, hit_own=4, hit_again=4)
    assert prefix.stats == expected


def test_a_budget_that_its_trash_leaves_too_small_is_refused(
    runs: Path, environment: Environment, prepared: Prepared
) -> None:
    config = make_config("tiny-gpt2", (ARM,))
    fitted = with_requests(prepared, ((20, 30),), slabs=1, max_length=64, block_size=8)
    found = run_arms(runs / "transformers_paged_small", environment, config, fitted).results.arms[0]
    assert found.status == "failed"
    expected = message("error.transformers_paged_small", blocks=6, needed=7, tokens=49)
    assert found.reason == expected


@pytest.fixture(scope="module")
def sharing(runs: Path, prepared: Prepared) -> Run:
    """Prompts with two blocks in common, in memory too small for all of them at a time."""
    config = make_config("tiny-gpt2", ("contiguous.sequential", "paged", ARM))
    engine = config.engine.model_copy(update={"prefix_caching": True})
    config = config.model_copy(update={"engine": engine})
    fitted = with_requests(prepared, ALIKE, slabs=1.5, max_length=64, block_size=8)
    common = fitted.workload.requests[0].token_ids[:16]
    requests = [
        one.model_copy(update={"token_ids": common + one.token_ids[16:]})
        for one in fitted.workload.requests
    ]
    workload = fitted.workload.model_copy(update={"requests": requests})
    fitted = Prepared(fitted.directory, fitted.model, workload)
    return run_arms_here(runs / "transformers_paged_sharing", config, fitted)


def test_blocks_that_it_shares_change_no_token(sharing: Run) -> None:
    assert sharing.arm(ARM).problems == []
    assert sharing.tokens(ARM) == sharing.tokens("contiguous.sequential")
    assert max(row.shared for row in sharing.rows(ARM)) >= 2


def test_what_it_shares_merges_and_evicts_is_told_block_for_block(sharing: Run) -> None:
    ops = [op for plan in sharing.plans(ARM) for op in plan.ops]
    # Two requests of the first step compute the same blocks; later ones find them.
    assert {op.kind for op in ops} == {*OpKind} - {OpKind.COPY, OpKind.SWAP_IN, OpKind.SWAP_OUT}
    found = sharing.arm(ARM).prefix_cache
    assert found is not None
    assert found["queried"] == sum(prompt for prompt, _ in ALIKE)
    first: dict[int, int] = {}
    for plan in sharing.plans(ARM):
        for chunk in plan.chunks:
            first.setdefault(chunk.request, chunk.start)
    assert found["hit_cross"] == sum(first.values()) > 0


def test_it_computes_the_same_prompts_as_ours_before_its_clock(run: Run) -> None:
    told = {e.arm: (e.requests, e.prompt_tokens) for e in run.record.of(ProfileRun)}
    prompts = [prompt for prompt, _ in REQUESTS]
    assert told[ARM] == told["paged"] == (len(prompts), sum(prompts))


def arm_of(fitted: Prepared, config: Config) -> tuple[ArmRun, list[Any]]:
    """The arm, and what it emits."""
    events: list[Any] = []
    wire: Any = SimpleNamespace(emit=events.append, mark=lambda _: None)
    task = ArmTask(
        arm=ARM, config=config, device="cpu", directory=fitted.directory, model=fitted.model,
        workload=fitted.workload,
    )  # fmt: skip
    return ArmRun(wire, task, 0.0), events


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_on_a_gpu_it_says_what_its_inputs_take_beside_its_cache(
    device: str, prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its attention mask has a row for each token of a step, over every slot and these tokens."""
    config = make_config("tiny-gpt2", (ARM,))
    fitted = with_requests(prepared, REQUESTS, slabs=4, max_length=64, block_size=8)
    run, events = arm_of(fitted, config)
    model = run.load("sdpa")
    run.device = torch.device(device)  # the model stays on the CPU
    monkeypatch.setattr(run, "synchronize", lambda: None)
    cache = transformers_paged._start(run, model).batch_processor.cache
    found = [e.bytes for e in events if isinstance(e, Reading) and e.channel is INPUTS]
    if device == "cpu":
        assert found == []
        return
    tokens = cache.max_batch_tokens
    mask = tokens * (cache.max_tokens_read + tokens) * fitted.model.element_bytes
    assert cache.max_tokens_read == (4 * 8 - 2) * 8
    assert found == [pytest.approx(mask, rel=0.1)]
    assert found[0] > mask


def test_what_it_computed_before_leaves_the_cache_as_a_new_one(prepared: Prepared) -> None:
    config = make_config("tiny-gpt2", (ARM,))
    engine = config.engine.model_copy(update={"prefix_caching": True})
    config = config.model_copy(update={"engine": engine})
    fitted = with_requests(prepared, ALIKE, slabs=4, max_length=64, block_size=8)
    run, _ = arm_of(fitted, config)
    manager = transformers_paged._start(run, run.load("sdpa"))
    cache = manager.batch_processor.cache
    (allocator,) = cache.cache_allocators.values()
    free, cached = list(cache.pool.free_sectors), allocator.ledger.cached_blocks
    seen: list[int] = []
    step = manager._generation_step
    manager._generation_step = lambda: (seen.append(len(allocator.block_table)), step())
    transformers_paged._warm_up(run, manager)
    assert seen[0] == len(ALIKE)
    assert len(seen) == NEW_TOKENS
    assert (cache.pool.free_sectors, dict(allocator.block_table)) == (free, {})
    assert allocator.ledger.cached_blocks is cached
    assert not cached
    assert not manager.batch_processor.scheduler.has_pending_requests()
