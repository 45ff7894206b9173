"""What fits: budgets line by line, requests at a time against plain simulations, the arguments."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from statistics import fmean, median
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_check import checked

from kvsim.contiguous.reservation import (
    POLICIES,
    ReservationPolicy,
    ReservationPool,
    reserved_slots,
)
from kvsim.core.blocks import blocks_needed
from kvsim.latency.roofline import Latency, LinearLatency, roofline
from kvsim.planning.plan import (
    KVBudget,
    Plan,
    PlanError,
    PlanQuestion,
    kv_budget,
    make_plan,
)
from kvsim.planning.saturation import (
    NeverSaturatedError,
    mean_over_steps,
    paged_demand,
    reserved_mean,
    saturate,
)
from kvsim.planning.speed import Traffic, most_within, speed
from kvsim.sim.config import catalogue_config
from kvsim.sim.simulator import simulate
from kvsim.sizing.fields import UnsupportedGeometryError
from kvsim.sizing.gpus import find_gpu
from kvsim.sizing.models import find_model
from kvsim.sizing.overhead import ServerOptions, rank_overhead, rank_weights
from kvsim.traces import ArrivalProcess, SyntheticTrace, from_preset
from kvsim.traces.distributions import LengthDistribution
from kvsim.traces.generate import Recipe

GIB = 1 << 30
OPT, A100 = find_model("opt-13b"), find_gpu("a100-40gb")
PAPER_BUDGET = KVBudget(12 * GIB, A100.memory_bytes)
Pair = st.tuples(st.integers(1, 30), st.integers(1, 30))
Pairs = st.lists(Pair, min_size=1, max_size=12)
EqualPairs = st.builds(lambda pair, count: [pair] * count, Pair, st.integers(1, 40))


def sharegpt(count: int = 1_000) -> list[tuple[int, int]]:
    trace = SyntheticTrace(
        from_preset("sharegpt-like", count, ArrivalProcess(None), max_length=2048)
    )
    return [(request.prompt_tokens, request.output_tokens) for request in trace]


def test_a_budget_is_memory_less_weights_less_overhead_and_says_what_was_assumed() -> None:
    budget = kv_budget(OPT, A100, utilisation=0.9)
    assert budget.usable == int(0.9 * A100.cuda_bytes)
    assert budget.weights == 2 * 12_853_473_280
    assert budget.kv == budget.usable - budget.weights - budget.overhead
    assert budget.low < budget.kv < budget.high
    assert budget.assumed == ("overhead",)
    known = kv_budget(OPT, A100, overhead=GIB)
    assert (known.assumed, known.overhead) == ((), GIB)
    # Table 1 of the paper: 12 GB of 40 are left.
    assert budget.kv / GIB == pytest.approx(11, abs=1)
    with pytest.raises(PlanError) as caught:
        kv_budget(find_model("opt-66b"), A100)
    assert caught.value.code == "no_room"
    with pytest.raises(ValueError, match="GPUs"):
        kv_budget(OPT, A100, utilisation=1.5)


def test_a_version_of_vllm_has_its_own_defaults() -> None:
    """As its ``arg_utils.py`` has them."""
    h100, b200, a100, t4 = map(find_gpu, ("h100", "b200", "a100-80gb", "t4"))
    now, before, oldest = ServerOptions(), ServerOptions((0, 19)), ServerOptions((0, 7))
    assert (now.utilisation(), before.utilisation()) == (0.92, 0.9)
    assert [now.batched_tokens(gpu, 8192) for gpu in (t4, a100, h100, b200)] == [
        2048, 2048, 8192, 16_384,
    ]  # fmt: skip
    assert before.batched_tokens(b200, 8192) == 8192
    assert [each.sequences(h100, 8192) for each in (now, before, oldest)] == [1024, 1024, 256]
    # V0 computed whole prompts, and so did V1's first versions on GPUs before Ampere.
    assert [oldest.batched_tokens(a100, n) for n in (512, 20_000, 40_000)] == [2048, 20_000, 2048]
    assert [ServerOptions((0, 9)).batched_tokens(gpu, 20_000) for gpu in (t4, a100)] == [
        20_000, 2048,
    ]  # fmt: skip


def test_public_start_up_logs_lie_within_the_planned_range() -> None:
    """The figures that ``make plan-check`` prints."""
    rows = list(checked())
    assert len(rows) > 30
    assert sum(row.contains for row in rows) >= 0.9 * len(rows)
    assert median(row.width for row in rows) <= 0.15
    assert median(abs(row.error) for row in rows) <= 0.05


def test_ranks_beyond_the_heads_keep_copies() -> None:
    def copies(name: str, gpus: int) -> float:
        model = find_model(name)
        return model.token_bytes(gpus=gpus) / model.token_bytes()

    assert [copies("llama-3.1-8b", gpus) for gpus in (1, 8, 16)] == [1, 1, 2]
    assert copies("deepseek-v3", 8) == 8


@given(lengths=Pairs, size=st.integers(1, 20))
def test_paged_demand_is_what_counting_every_step_gives(
    lengths: list[tuple[int, int]], size: int
) -> None:
    held = [tokens for p, n in lengths for tokens in range(p, p + n)]
    demand = paged_demand(lengths, size)
    blocks = sum(blocks_needed(tokens, size) for tokens in held)
    assert demand.blocks == pytest.approx(blocks / len(held))
    assert demand.tail_share == pytest.approx(1 - sum(held) / (blocks * size), abs=1e-9)
    ends = [p + n - 1 for p, n in lengths]
    assert demand.final_live == pytest.approx(fmean(ends))
    assert demand.final_blocks == pytest.approx(fmean(blocks_needed(end, size) for end in ends))


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=40)
@given(lengths=Pairs | EqualPairs, slots=st.integers(64, 300))
def test_stretches_are_the_steps_one_by_one(
    policy: ReservationPolicy, lengths: list[tuple[int, int]], slots: int
) -> None:
    pool, left = ReservationPool(slots, policy, 64), list(lengths)
    running: dict[int, list[int]] = {}  # tokens to generate, written
    sums, steps = [0.0] * 4, 0
    while left:
        while left and pool.fits(*left[0]):
            prompt, new = left.pop(0)
            number = len(lengths) - len(left)
            pool.admit(number, prompt, new)
            running[number] = [new, prompt]
        if not left:
            break
        live = sum(written for _, written in running.values())
        counts = pool.counts(live, pool.requested_slots(*left[0]))
        states = (len(pool), counts.live, counts.hole, counts.free)
        sums = [total + state for total, state in zip(sums, states, strict=True)]
        steps += 1
        for request, (more, written) in list(running.items()):
            running[request] = [more - 1, written + 1]
            if more == 1:
                del running[request]
                pool.release(request)
    if not steps:
        with pytest.raises(NeverSaturatedError):
            saturate(policy, slots, 64, lengths)
        return
    found = saturate(policy, slots, 64, lengths)
    assert found.steps == steps
    assert (found.running, found.live, found.hole, found.free) == pytest.approx(
        tuple(total / steps for total in sums)
    )
    total = found.live + found.written_later + found.never_written + found.rounding
    assert total + found.hole + found.free == pytest.approx(slots)


def test_a_plan_of_the_paper_s_machine() -> None:
    question = PlanQuestion(OPT, A100, sharegpt(), budget=PAPER_BUDGET, max_length=2048)
    plan = make_plan(question)
    assert plan.bytes_per_token == 819_200
    assert plan.blocks == 12 * GIB // (16 * 819_200) == 983
    running = {name: policy.running for name, policy in plan.policies.items()}
    assert running["max"] == pytest.approx(7.0)
    assert running["max"] < running["pow2"] < running["oracle"] < running["paged"]
    assert plan.policies["max"].request_bytes == pytest.approx(12 * GIB / 7, rel=1e-3)
    tails = [demand.tail_share for demand in plan.block_sizes]
    assert tails == sorted(tails)
    assert question.speed(Traffic.of(sharegpt()), 7, 2048) is None  # without a latency model
    assert plan.vllm_args == (
        "--model", "facebook/opt-13b", "--max-model-len", "2048", "--block-size", "16",
        "--kv-cache-memory-bytes", str(12 * GIB),
    )  # fmt: skip


def test_the_contiguous_baseline_is_plain_arithmetic() -> None:
    """As many rows of exactly the maximum length as the budget holds; only Orca's max jumps."""
    model, gpu = find_model("llama-3.1-8b"), find_gpu("rtx-4090")
    budget, token = kv_budget(model, gpu), 2 * 32 * 8 * 128 * 2
    found = {}
    for length in (300, 400, 511, 512, 513, *range(1000, 1025), 2047, 2048, 2049, 8000):
        plan = make_plan(PlanQuestion(model, gpu, [(length - 200, 200)], budget=budget))
        slabs = plan.policies["slabs"]
        found[length] = slabs.running
        assert slabs.running == slabs.guaranteed == budget.kv // (length * token)
        assert slabs.request_bytes == length * token
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert all(found[n] - found[n + 1] in (0, 1) for n in found if n >= 1000 and n + 1 in found)
    case = make_plan(PlanQuestion(model, gpu, [(725, 300)], budget=budget)).policies
    assert (case["slabs"].running, case["max"].running) == (45, 22)
    assert case["paged"].running is not None
    assert case["paged"].running / 45 == pytest.approx(1.16, abs=0.01)


def test_what_is_left_out_and_what_is_missing_is_told() -> None:
    lengths = [(100, 100)] * 5 + [(3000, 5)]
    plan = make_plan(PlanQuestion(OPT, A100, lengths, budget=PAPER_BUDGET, max_length=1024))
    assert (plan.requests, plan.too_long, plan.left_out) == (5, 1, 0)
    # Without one given, the longest request decides, and the model's positions bound it.
    assert make_plan(PlanQuestion(OPT, A100, lengths[:5])).max_length == 200
    assert make_plan(PlanQuestion(OPT, A100, lengths)).max_length == 2048
    tiny = [(1, 1)] * 3
    plan = make_plan(PlanQuestion(OPT, A100, tiny, budget=PAPER_BUDGET, max_length=2))
    assert plan.policies["oracle"].running is None
    assert plan.policies["oracle"].reason == "never_saturated"
    # 300 slots in a row are not to be had from 384 = 256 + 128.
    odd = KVBudget(384 * 819_200, A100.memory_bytes)
    plan = make_plan(PlanQuestion(OPT, A100, [(290, 10)], budget=odd, max_length=300))
    assert plan.policies["oracle"].reason == "never_fits"
    assert plan.policies["paged"].running is not None


@pytest.mark.parametrize(
    ("question", "code"),
    [
        (PlanQuestion(OPT, A100, []), "no_lengths"),
        (PlanQuestion(OPT, A100, [(5, 5)], max_length=4096), "positions"),
        (PlanQuestion(OPT, A100, [(50, 5)], max_length=20), "too_long"),
        (PlanQuestion(OPT, A100, [(500, 5)], budget=KVBudget(GIB // 4, GIB)), "no_block"),
        (PlanQuestion(find_model("opt-66b"), A100, [(5, 5)]), "no_room"),
    ],
)
def test_a_plan_that_cannot_be_made_says_why(question: PlanQuestion, code: str) -> None:
    with pytest.raises(PlanError) as caught:
        make_plan(question)
    assert caught.value.code == code


def rate_of(latency: Latency, pairs: list[tuple[int, int]], running: float) -> float | None:
    found = speed(latency, Traffic.of(pairs), running)
    return found.rate if found else None


def test_the_rate_at_which_the_pool_is_full_is_little_s_law() -> None:
    # Steps of 10 ms whatever they do: 20 tokens take 0.2 s, so 40 at a time are 200 a second.
    assert rate_of(LinearLatency(0.01), [(5, 20)], 40) == pytest.approx(200)
    # 2 prompts of 5 come in with every step: 10 more ms.
    both = LinearLatency(0.01, per_prefill_token_s=0.001)
    assert rate_of(both, [(5, 20)], 40) == pytest.approx(100)
    assert rate_of(both, [(5, 20)], 0.5) is None
    # A second for each query and key. A step has one prompt of 4, whose tokens attend to 1 to 4,
    # and 2 that decode, with 4 or 5 slots each, half of the time: 10 + 2 x 4.5.
    assert rate_of(LinearLatency(per_pair_s=1.0), [(4, 2)], 2) == pytest.approx(1 / 19)


@pytest.mark.parametrize("rate", [2.0, 6.0])
def test_it_is_as_fast_as_a_simulation_of_even_arrivals(rate: float) -> None:
    model, gpu = find_model("llama-3.1-8b"), find_gpu("rtx-4090")
    config = catalogue_config("paged", model.name, gpu.name, budget_bytes=8 * GIB, max_length=800)
    trace = SyntheticTrace(
        Recipe(
            600,
            ArrivalProcess(rate, 0),
            LengthDistribution("fixed", 500),
            LengthDistribution("fixed", 300),
            max_length=800,
        )
    )
    found = simulate(trace, config)
    middle = slice(*(len(found.series.ends_s) * part // 4 for part in (1, 3)))
    running = fmean(found.series.levels["running"][middle])
    at = speed(config.latency, Traffic.of([(500, 300)]), running)
    assert at
    assert at.rate == pytest.approx(rate, rel=0.05)
    assert at.tpot_s == pytest.approx(found.per_output_token_s.mean, rel=0.05)
    assert at.ttft_s == pytest.approx(found.first_token_s.mean, rel=0.1)


def test_windows_and_states_are_read_as_they_are_kept() -> None:
    """Gemma 3: one layer of six keeps every token, the others 1,024; Qwen3-Next: one of four."""
    pairs = [(32_768, 1)]
    plain, window = Traffic.of(pairs), Traffic.of(pairs, find_model("gemma-3-27b").caches())
    layers, wide = 62, 32_768 // 1024
    full = 62 // 6
    assert window.read / plain.read == pytest.approx((full + (layers - full) / wide) / layers, 1e-3)
    # A token of a window meets 1,024 keys; the first 1,024 meet fewer.
    kept = 1 - (1 - 1 / wide) ** 2
    assert window.pairs / plain.pairs == pytest.approx(
        (full + (layers - full) * kept) / layers, 1e-3
    )
    states = Traffic.of(pairs, find_model("qwen3-next-80b-a3b").caches())
    assert states.pairs == pytest.approx(plain.pairs)  # of the layers with keys
    assert 1 < states.read / plain.read < 1.2


@pytest.mark.parametrize(("ttft", "tpot"), [(inf, 0.02), (0.05, inf), (0.05, 0.015), (1e-6, inf)])
def test_the_most_requests_within_times(ttft: float, tpot: float) -> None:
    """No more than that meet both, and with one more one of them is missed."""
    model, gpu = find_model("llama-3.1-8b"), find_gpu("h100")
    latency, traffic = roofline(model, gpu), Traffic.of([(1000, 300)])

    def meets(running: int) -> bool:
        found = speed(latency, traffic, running)
        return found is None or (found.ttft_s <= ttft and found.tpot_s <= tpot)

    most = most_within(lambda n: speed(latency, traffic, n), 1000, ttft, tpot)
    assert meets(most) or not most
    assert not meets(most + 1)


# Weights of a rank in GiB, as public start-up logs print them: two pipeline stages (the first
# rank, and the last one, which governs), and whole experts on each rank.
RANKS = [
    ("qwen3-32b", None, 1, ServerOptions(pipeline_parallel=2), 30.52, 30.52),
    ("deepseek-v2", None, 8, ServerOptions(pipeline_parallel=2), 27.63, 28.48),
    ("qwen3-235b-a22b", "fp8", 8, ServerOptions(expert_parallel=True), 27.72, 27.72),
]


@pytest.mark.parametrize(("name", "kind", "tensor", "options", "low", "high"), RANKS)
def test_weights_of_a_rank_are_those_of_public_logs(
    name: str, kind: str | None, tensor: int, options: ServerOptions, low: float, high: float
) -> None:
    model = find_model(name)
    found = rank_weights(model.quantised(kind) if kind else model, tensor, None, options) / GIB
    assert 0.99 * low < found < 1.01 * high


@pytest.mark.parametrize(("slots", "gib"), [(8, 8.17), (16, 8.78), (64, 12.49)])
def test_places_of_adapters_are_those_of_a_public_log(slots: int, gib: float) -> None:
    """Qwen3-4B with adapters of rank 16, vLLM 0.27: 7.63 GiB with one place for them."""
    model, gpu = find_model("qwen3-4b"), find_gpu("rtx-4090")

    def needed(count: int) -> float:
        options = ServerOptions((0, 27), max_loras=count)
        return rank_overhead(model, gpu, options, 8192).buffers.middle / GIB

    assert needed(slots) - needed(1) == pytest.approx(gib - 7.63, rel=0.02)


def test_pipeline_stages_hold_the_tokens_of_a_public_log() -> None:
    """Qwen3-32B in two stages with 6.92 GiB for each: vLLM printed 56,640 tokens, 1.73x."""
    model, gpu = find_model("qwen3-32b"), find_gpu("rtx-pro-6000")
    budget = KVBudget(2 * int(6.92 * GIB), 2 * gpu.memory_bytes)
    plan = make_plan(
        PlanQuestion(
            model, gpu, [(32_000, 768)], gpus=2, max_length=32_768, budget=budget,
            options=ServerOptions(pipeline_parallel=2),
        )
    )  # fmt: skip
    assert plan.printed
    assert plan.printed.tokens == pytest.approx(56_640, abs=48)  # two digits of GiB
    assert round(plan.printed.max_concurrency, 2) == 1.73
    assert plan.bytes_per_token == 64 * 2 * 8 * 128 * 2
    stages = ServerOptions(pipeline_parallel=65)
    many = PlanQuestion(model, gpu, [(5, 5)], gpus=65, budget=budget, options=stages)
    with pytest.raises(PlanError) as caught:
        make_plan(many)
    assert caught.value.code == "stages"


@pytest.mark.parametrize(("gpus", "refused"), [(2, False), (3, True), (5, True), (4, False)])
def test_heads_are_split_evenly_or_the_plan_is_refused(gpus: int, refused: bool) -> None:
    question = PlanQuestion(find_model("llama-2-7b"), A100, [(50, 50)], gpus=gpus)
    if not refused:
        assert make_plan(question).blocks
        return
    with pytest.raises(UnsupportedGeometryError) as caught:
        make_plan(question)
    assert caught.value.reason == "uneven"


def test_a_block_size_that_vllm_lacks_has_no_command() -> None:
    def plan(**more: Any) -> Plan:
        model, gpu = find_model("llama-2-7b"), find_gpu("a100-80gb")
        return make_plan(PlanQuestion(model, gpu, [(500, 300)], **more))

    assert plan().printed is not None
    assert plan(block_size=8).vllm_args == ()
    assert plan(block_size=8).printed is None


# What vLLM prints; 20 GiB for K and V, 8,192 tokens in a step.
PRINTED: list[tuple[str, dict[str, Any], int, float]] = [
    ("gemma-3-27b", {}, 62_557, 1.91),
    ("gemma-3-27b", {"async_scheduling": False}, 97_435, 2.97),
    ("llama-3.1-8b", {}, 163_840, 5.0),
]


@pytest.mark.parametrize(("name", "more", "tokens", "concurrency"), PRINTED)
def test_what_vllm_prints(name: str, more: dict[str, Any], tokens: int, concurrency: float) -> None:
    model, gpu = find_model(name), find_gpu("h100")
    budget = KVBudget(20 * GIB, gpu.memory_bytes)
    plan = make_plan(
        PlanQuestion(model, gpu, [(5000, 300)], budget=budget, max_length=32_768, **more)
    )
    assert plan.printed is not None
    assert (plan.printed.tokens, round(plan.printed.max_concurrency, 2)) == (tokens, concurrency)


def test_windows_and_states_are_planned_in_groups() -> None:
    def plan(name: str, length: int, **more: Any) -> Plan:
        model, gpu = find_model(name), find_gpu("h100")
        question = PlanQuestion(model, gpu, [(length - 100, 100)], max_length=length, **more)
        return make_plan(replace(question, budget=KVBudget(20 * GIB, gpu.memory_bytes)))

    assert not plan("mistral-7b-v0.1", 4096).memory  # within the window every token is kept
    long = plan("mistral-7b-v0.1", 32_768)
    assert long.memory["full"][-1] == 8 * long.memory["static"][-1]
    assert set(long.policies) == {"paged", "slabs"}
    hybrid = plan("qwen3-next-80b-a3b", 32_768)
    assert hybrid.fixed_bytes > 0
    kept = plan("qwen3-next-80b-a3b", 32_768, prefix_caching=False).printed
    assert kept
    assert hybrid.printed
    assert kept.tokens > hybrid.printed.tokens  # prefix caching keeps a second state
    with pytest.raises(PlanError) as caught:
        make_plan(
            PlanQuestion(find_model("gemma-3-27b"), A100, [(9_000, 5)], budget=KVBudget(GIB, GIB))
        )
    assert caught.value.code == "no_memory"


@given(lengths=Pairs, step=st.integers(1, 9))
def test_means_over_steps_are_those_of_each_step(lengths: list[tuple[int, int]], step: int) -> None:
    at = np.arange(64) // step
    held = [at[tokens] for p, n in lengths for tokens in range(p, p + n)]
    assert mean_over_steps(lengths, at) == pytest.approx(fmean(held))


def test_vllm_is_told_the_budget_of_one_gpu() -> None:
    plan = make_plan(PlanQuestion(OPT, A100, [(50, 50)], gpus=2, budget=PAPER_BUDGET))
    assert plan.vllm_args[-2:] == ("--kv-cache-memory-bytes", str(6 * GIB))
    args = make_plan(PlanQuestion(OPT, A100, [(50, 50)], gpus=2)).vllm_args
    assert args[-2:] == ("--gpu-memory-utilization", "0.92")
    old = ServerOptions((0, 10))  # has no such argument
    plan = make_plan(PlanQuestion(OPT, A100, [(50, 50)], gpus=2, budget=PAPER_BUDGET, options=old))
    assert plan.vllm_args[-2:] == ("--num-gpu-blocks-override", str(plan.blocks))


@given(lengths=Pairs)
def test_what_contiguous_asks_for_on_average(lengths: list[tuple[int, int]]) -> None:
    for policy in POLICIES:
        each = [reserved_slots(policy, p, n, 64) for p, n in lengths for _ in range(n)]
        assert reserved_mean(policy, lengths, 64) == pytest.approx(sum(each) / len(each))
