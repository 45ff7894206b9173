"""The engine over eight bits: the books stay right, and what changes a token and what does not.

Which numbers a query reads depends on the scales at that moment, and so on what else was written
in its chunk. With equal chunks a request therefore generates what it generates alone, whoever
runs beside it and wherever its blocks lie; with other chunks, or computed again after a
preemption, it may not.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from random_jobs import Job, count_ops, needs, random_jobs, run
from tiny_engine import finish, geometry, make_engine

from experiment.config.kv_dtype import cache_geometry
from experiment.engine import kv_error
from experiment.engine.engine import Engine
from experiment.engine.kv_error import KVError, measure
from experiment.engine.kv_pool import KVPool
from experiment.engine.model_runner import ModelRunner
from experiment.engine.quantized import KV_DTYPES, QuantizedKV, from_blocks
from experiment.engine.step_inputs import build_inputs
from experiment.gpucheck.tiny_models import FAMILIES, VOCABULARY, tiny
from kvsim.core.step import Chunk, OpKind, StepPlan

CPU = torch.device("cpu")


@cache
def alone(family: str, prompt: tuple[int, ...], new: int, block_size: int, kind: str) -> list[int]:
    """Tokens of one request alone in the engine, its prompt in one chunk."""
    engine = make_engine(family, 64, block_size, kv_dtype=kind)
    engine.add(0, list(prompt), new)
    finish(engine)
    return engine.generated(0)


def assert_as_alone(
    engine: Engine, family: str, jobs: dict[int, Job], block_size: int, kind: str
) -> None:
    for request, job in jobs.items():
        expected = alone(family, tuple(job.prompt), job.new, block_size, kind)
        for sample in (request, *job.children):
            assert engine.generated(sample) == expected, sample


@pytest.mark.parametrize("kind", KV_DTYPES)
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_company_and_forks_change_no_token(block_size: int, kind: str) -> None:
    copies = 0
    for seed in range(4):
        family = FAMILIES[seed]
        jobs = random_jobs(500 + seed, forks=True)
        engine = make_engine(family, 300, block_size, kv_dtype=kind)
        copies += count_ops(run(engine, jobs), OpKind.COPY)
        assert_as_alone(engine, family, jobs, block_size, kind)
    assert copies > 0 or block_size == 1


@pytest.mark.parametrize("kind", KV_DTYPES)
@pytest.mark.parametrize("block_size", [1, 4, 5])
def test_swapping_out_and_in_changes_no_token(block_size: int, kind: str) -> None:
    swapped = 0
    for seed in range(6):
        family = FAMILIES[seed % 4]
        jobs = random_jobs(200 + seed)
        engine = make_engine(
            family, max(needs(jobs, block_size)) + 1, block_size, kv_dtype=kind,
            preemption="swap", host_blocks=200,
        )  # fmt: skip
        swapped += count_ops(run(engine, jobs), OpKind.SWAP_OUT)
        assert_as_alone(engine, family, jobs, block_size, kind)
    assert swapped > 0


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("caching", [False, True])
def test_tensors_tables_and_ledger_agree_at_every_step(preemption: str, caching: bool) -> None:
    """Short pools, chunked prompts, forks, evictions: ``run`` compares after each step."""
    preempted = evicted = chunked = 0
    for seed in range(8):
        jobs = random_jobs(200 + seed, forks=seed % 2 == 1)
        block_size = (1, 4, 5)[seed % 3]
        engine = make_engine(
            FAMILIES[seed % 4], max(needs(jobs, block_size)) + seed % 3, block_size,
            kv_dtype="int8", preemption=preemption, prefix_caching=caching,
            host_blocks=40 if preemption == "swap" else 0,
            max_num_batched_tokens=(6, 512)[seed % 2],
        )  # fmt: skip
        plans = run(engine, jobs)
        for request, job in jobs.items():
            assert len(engine.generated(request)) == job.new
        preempted += sum(len(plan.preempted) for plan in plans)
        evicted += count_ops(plans, OpKind.EVICT)
        chunked += sum(not chunk.samples for plan in plans for chunk in plan.chunks)
    assert preempted > 0
    assert chunked > 0
    assert (evicted > 0) == caching


def _logits(family: str, kind: str, prompt: list[int], kernel: str = "torch") -> torch.Tensor:
    """Logits of every position of a prompt that is computed in one chunk."""
    shape = cache_geometry(geometry(family), kind)
    pool = KVPool(shape, 12, 4, KV_DTYPES.get(kind, torch.float32), CPU)
    plan = StepPlan(0, chunks=(Chunk(0, 0, len(prompt), samples=True),))
    inputs = build_inputs(plan, {0: prompt}, {0: list(range(11, -1, -1))}, 4, CPU)
    object.__setattr__(inputs, "sampled_rows", torch.arange(len(prompt)))
    return ModelRunner(tiny(family), pool, kernel).logits(inputs)


def _measured(family: str, kind: str, prompt: list[int], new: int, size: int = 4) -> KVError:
    plain = geometry(family)
    small = cache_geometry(plain, kind)
    return measure(tiny(family), plain, small, KV_DTYPES[kind], size, "torch", prompt, new)


@pytest.mark.parametrize("kind", KV_DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_measured_error_of_logits_is_that_of_two_runs(family: str, kind: str) -> None:
    prompt = [7 * i % VOCABULARY for i in range(30)]
    found = _measured(family, kind, prompt, new=1)
    exact, small = _logits(family, "auto", prompt), _logits(family, kind, prompt)
    difference = (exact - small).abs()
    assert (found.tokens, found.positions) == (30, 30)
    assert found.logit_largest == pytest.approx(float(difference.max()), rel=1e-3)
    assert found.logit_mean == pytest.approx(float(difference.mean()), rel=1e-3)
    assert found.same_token == int((exact.argmax(-1) == small.argmax(-1)).sum())
    assert 0 < found.attention <= found.attention_worst < 0.2
    assert 0 < found.logit_mean < found.logit_largest
    assert found.logit_mean < found.logit_spread / 4


def test_both_caches_are_given_the_same_tokens_after_the_prompt() -> None:
    prompt = [5, 6, 7, 8, 9]
    found = _measured("gpt2", "int8", prompt, new=40)
    assert found.tokens == 5 + kv_error.NEW_TOKENS - 1
    assert found.positions == found.tokens  # a short prompt is compared whole
    long = _measured("gpt2", "int8", list(range(40)), new=3, size=512)
    assert (long.tokens, long.positions) == (42, 32 + 2)


class _Broken(KVPool):
    """An int8 pool that turns the sign of all values at every write."""

    def write(self, layer: int, *arguments: Any) -> None:
        super().write(layer, *arguments)
        if self.quantized:
            self.kv[layer, 1].neg_()


def test_a_cache_that_would_choose_other_tokens_is_given_those_of_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[list[int]] = []

    def recorded(plan: StepPlan, tokens: dict[int, list[int]], *others: Any) -> Any:
        end = plan.chunks[0].start + plan.chunks[0].count
        given.append(tokens[0][:end])
        return build_inputs(plan, tokens, *others)

    monkeypatch.setattr(kv_error, "build_inputs", recorded)
    monkeypatch.setattr(kv_error, "KVPool", _Broken)
    found = _measured("llama", "int8", list(range(20)), 16)
    assert given[:16] == given[16:]
    assert found.same_token < found.positions / 2


def test_a_cache_that_loses_nothing_has_no_error_and_a_coarse_one_has_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prompt = list(range(20))
    right = _measured("llama", "int8", prompt, 4)

    def coarse(kv: torch.Tensor, dtype: torch.dtype) -> QuantizedKV:
        small = from_blocks(kv, dtype)
        assert small.scales is not None
        values = torch.where(small.values == -128, small.values, ((small.values >> 4) << 4) | 8)
        return QuantizedKV(values, small.scales)

    monkeypatch.setattr(kv_error, "from_blocks", coarse)
    assert _measured("llama", "int8", prompt, 4).attention > 4 * right.attention
    monkeypatch.setattr(kv_error, "from_blocks", lambda kv, dtype: kv)
    assert _measured("llama", "int8", prompt, 4).attention == 0
