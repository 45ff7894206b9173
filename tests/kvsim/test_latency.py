"""Step durations, the clock, least squares without negative costs, and errors of fits."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.latency.calibrate import (
    Floats,
    StepRecord,
    calibrate_linear,
    calibrate_roofline,
    constant_error,
    fit_error,
    fold_blocks,
    nnls,
)
from kvsim.latency.clock import ATTOSECONDS, DecodeRun, StepClock
from kvsim.latency.roofline import (
    ASSUMED,
    IDEAL,
    BatchLatency,
    Efficiencies,
    Latency,
    LinearLatency,
    Roofline,
    StepWork,
    least_costs,
    roofline,
)
from kvsim.sizing.gpus import find_gpu
from kvsim.sizing.models import find_model


def residual(columns: Floats, target: Floats, x: Floats) -> float:
    return float(((columns @ x - target) ** 2).sum())


@given(seed=st.integers(0, 10_000), width=st.integers(1, 4), rows=st.integers(1, 9))
def test_nnls_is_the_best_of_all_choices_of_zeros(seed: int, width: int, rows: int) -> None:
    random = np.random.default_rng(seed)
    columns, target = random.normal(size=(rows, width)), random.normal(size=rows)
    columns[:, 0] *= 1e-6
    found = nnls(columns, target)
    assert found.min() >= 0
    best = float((target**2).sum())
    for chosen in itertools.product([False, True], repeat=width):
        x = np.zeros(width)
        if any(chosen):
            mask = np.array(chosen)
            x[mask] = np.linalg.lstsq(columns[:, mask], target, rcond=None)[0]
        if x.min() >= 0:
            best = min(best, residual(columns, target, x))
    assert residual(columns, target, found) == pytest.approx(best, rel=1e-6, abs=1e-9)


def test_nnls_of_columns_that_are_alike_meets_the_conditions_of_an_optimum() -> None:
    # One in forty of these frees a coefficient that has to go back to 0 later.
    for seed in range(400):
        random = np.random.default_rng(seed)
        columns = np.abs(random.normal(size=(9, 5))) @ np.abs(random.normal(size=(5, 5)))
        columns += 0.1 * random.normal(size=(9, 5))
        target = np.abs(random.normal(size=9))
        x = nnls(columns, target)
        gain = columns.T @ (target - columns @ x)
        assert x.min() >= 0
        assert gain.max() < 1e-8
        assert abs(gain[x > 0]).max(initial=0) < 1e-8


def test_nnls_refuses_what_is_no_data() -> None:
    with pytest.raises(ValueError, match="columns for"):
        nnls(np.ones((0, 2)), np.ones(0))
    with pytest.raises(ValueError, match="finite"):
        nnls(np.array([[np.nan]]), np.ones(1))
    assert nnls(np.zeros((3, 1)), np.ones(3)) == 0


@given(chunks=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 6), st.booleans()), max_size=5))
def test_work_is_what_counting_each_query_and_key_gives(
    chunks: list[tuple[int, int, bool]],
) -> None:
    work = StepWork.of(chunks)
    assert work.tokens == sum(count for _, count, _ in chunks)
    assert work.decode_tokens == sum(count for _, count, decode in chunks if decode)
    assert work.kv_read_tokens == sum(start + count for start, count, _ in chunks)
    pairs = [position + 1 for s, c, _ in chunks for position in range(s, s + c)]
    assert work.attention_pairs == sum(pairs)


@pytest.mark.parametrize(
    ("efficiencies", "weights", "cache", "products", "attention"),
    [(IDEAL, 1, 1, 1, 1), (ASSUMED, 0.72, 0.89, 0.8, 0.73)],
)
def test_a_decode_step_reads_all_weights_and_a_long_prompt_is_arithmetic(
    efficiencies: Efficiencies, weights: float, cache: float, products: float, attention: float
) -> None:
    model, gpu = find_model("llama-2-7b"), find_gpu("a100-80gb")
    found = roofline(model, gpu, efficiencies=efficiencies)
    moved = 2 * 6_738_415_616 / weights + 524_288 * (1001 + 1) / cache
    assert found.seconds(StepWork.of([(1000, 1, True)])) == pytest.approx(moved / 2039e9)
    # 2 operations a weight and token, 4 a head element and pair of tokens.
    pairs = 4 * 32 * 4096 * (4096 * 4097 // 2)
    done = 2 * 6_738_415_616 * 4096 / products + pairs / attention
    assert found.seconds(StepWork.of([(0, 4096, False)])) == pytest.approx(done / 312e12)


def test_arithmetic_and_traffic_overlap_or_add_up_and_gpus_share_them() -> None:
    model, gpu = find_model("llama-2-7b"), find_gpu("a100-80gb")
    ideal, prompt = roofline(model, gpu, efficiencies=IDEAL), StepWork.of([(0, 4096, False)])
    assert ideal.seconds(StepWork()) == LinearLatency(1.0).seconds(StepWork()) == 0
    both = replace(ideal, overlap="sum", fixed_s=1.0)
    assert both.seconds(prompt) == pytest.approx(
        1 + ideal.memory_s(prompt) + ideal.compute_s(prompt)
    )
    two = roofline(model, gpu, gpus=2, efficiencies=IDEAL)
    links = two.peer_token_s * prompt.tokens
    assert two.seconds(prompt) - links == pytest.approx(ideal.seconds(prompt) / 2)
    with pytest.raises(ValueError, match="0 GPUs"):
        roofline(model, gpu, gpus=0)


def test_one_token_reads_its_experts_and_many_tokens_read_all() -> None:
    model = find_model("mixtral-8x7b")
    ideal = roofline(model, find_gpu("h100"), efficiencies=IDEAL)
    one = ideal.memory_s(StepWork(decode_tokens=1)) * ideal.bandwidth
    assert one == pytest.approx(2 * model.active_parameters, rel=1e-4)
    many = ideal.memory_s(StepWork(decode_tokens=200)) * ideal.bandwidth
    assert many == pytest.approx(2 * model.parameters, rel=1e-3)


def works(seed: int, count: int) -> list[StepWork]:
    random = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        chunks = [(int(random.integers(1, 4000)), 1, True) for _ in range(random.integers(1, 60))]
        if random.random() < 0.5:
            chunks.append((0, int(random.integers(16, 4000)), False))
        made.append(StepWork.of(chunks))
    return made


def test_a_linear_fit_finds_the_costs_that_made_the_records() -> None:
    true = LinearLatency(5e-3, 4e-5, 7e-5, 6e-8, 2e-10)
    records = [StepRecord(work, true.seconds(work)) for work in works(0, 80)]
    found = calibrate_linear(records)
    for name in LinearLatency.__dataclass_fields__:
        assert getattr(found.latency, name) == pytest.approx(getattr(true, name), rel=1e-4)
    assert found.held_out.p95_percent < 0.01
    assert found.constant.mean_percent > 20
    assert found.held_out.count == 80


@pytest.mark.parametrize("overlap", ["max", "sum"])
def test_a_roofline_fit_finds_form_and_efficiencies(overlap: str) -> None:
    ideal = roofline(find_model("llama-3.1-8b"), find_gpu("a100-80gb"))
    reached = Efficiencies(0.8, 0.8, 0.55, 0.55)
    true = replace(ideal, fixed_s=2e-3, efficiencies=reached, overlap=overlap)
    random = np.random.default_rng(1)
    records = [
        StepRecord(work, true.seconds(work) * float(random.normal(1, 0.01)))
        for work in works(2, 120)
    ]
    found = calibrate_roofline(records, ideal)
    assert found.latency.overlap == overlap
    assert found.latency.efficiencies.weights == pytest.approx(0.8, rel=0.05)
    assert found.latency.efficiencies.attention == pytest.approx(0.55, rel=0.05)
    assert found.latency.fixed_s == pytest.approx(2e-3, rel=0.2)
    assert found.held_out.mean_percent < 1.2
    # What links take is in the efficiencies.
    linked = calibrate_roofline(records, replace(ideal, peer_token_s=1e-6))
    assert linked == found


def test_a_held_out_block_is_predicted_without_itself() -> None:
    error = constant_error(np.array([1.0] * 8 + [9.0] * 2), 5)
    # 1 s for the last block; for the others the least squares of 6 times 1 s and twice 9 s.
    others = (6 + 2 / 9) / (6 + 2 / 81)
    expected = (8 * (others - 1) + 2 * 8 / 9) / 10
    assert error.mean_percent == pytest.approx(100 * expected)
    assert fold_blocks(10, 3) == [slice(0, 3), slice(3, 6), slice(6, 10)]
    for count, folds in ((3, 4), (3, 1)):
        with pytest.raises(ValueError, match="folds"):
            fold_blocks(count, folds)


def test_a_step_s_held_out_error_is_of_a_fit_that_has_not_seen_it() -> None:
    # All steps are alike; those of the last fifth took 3 s, the others 1 s.
    records = [StepRecord(StepWork(1, 0, 1, 1), 3.0 if n >= 40 else 1.0) for n in range(50)]
    found = calibrate_linear(records, folds=5)
    # Without the last fifth 1 s is foretold for it; else the least squares of relative errors.
    others = (30 + 10 / 3) / (30 + 10 / 9)
    wanted = (10 * (1 - 1 / 3) + 40 * (others - 1)) / 50
    assert found.held_out.mean_percent == pytest.approx(100 * wanted, rel=1e-6)
    assert found.fit.mean_percent < 0.95 * found.held_out.mean_percent


def test_errors_are_percentages_of_what_was_recorded() -> None:
    error = fit_error(np.array([1.1, 2.0]), np.array([1.0, 4.0]))
    assert error.mean_percent == pytest.approx(30)
    assert error.bias_percent == pytest.approx(100 * (3.1 - 5) / 5)
    with pytest.raises(ValueError, match="positive"):
        fit_error(np.ones(1), np.zeros(1))
    with pytest.raises(ValueError, match="positive"):
        calibrate_linear([StepRecord(StepWork(), 0.0)] * 9)


def test_no_fit_beats_physics() -> None:
    ideal = roofline(find_model("llama-3.1-8b"), find_gpu("a100-80gb"))
    faster = replace(ideal, efficiencies=Efficiencies(3.0, 3.0, 2.0, 2.0))
    records = [StepRecord(work, faster.seconds(work)) for work in works(2, 120)]
    found = calibrate_roofline(records, ideal).latency
    assert found.efficiencies == IDEAL


def test_the_least_costs_are_those_of_reading_and_of_the_largest_prompt_step() -> None:
    ideal = roofline(find_model("llama-2-7b"), find_gpu("a100-80gb"), efficiencies=IDEAL)
    least = least_costs(ideal, 2048)
    assert least.fixed_s == pytest.approx(2 * 6_738_415_616 / 2039e9)
    assert least.per_kv_token_s == pytest.approx(524_288 / 2039e9)
    full = least.fixed_s + 2048 * least.per_prefill_token_s
    assert full == pytest.approx(2 * 6_738_415_616 * 2048 / 312e12)


def test_ranks_sum_the_outputs_of_each_layer_over_their_links() -> None:
    """Two sums of 4,096 elements of 2 bytes in 32 layers, in a ring of each engine."""
    model, a_sum = find_model("llama-3.1-8b"), 2 * 32 * 4096 * 2
    for name, gigabytes in (("h100", 450), ("l40s", 31.5)):
        found = [roofline(model, find_gpu(name), gpus=n).peer_token_s for n in (1, 2, 8)]
        expected = [share * a_sum / (gigabytes * 1e9) for share in (0, 1, 7 / 4)]
        assert found == pytest.approx(expected)
    # Each of eight in a mesh has a link to each of the others, each of two has one.
    mesh = [roofline(model, find_gpu("mi300x"), gpus=n).peer_token_s for n in (2, 8)]
    assert mesh == pytest.approx([a_sum / 64e9, 7 / 4 * a_sum / (7 * 64e9)])
    gpu = find_gpu("h100")
    four, two = roofline(model, gpu, 4), roofline(model, gpu, 8, engines=2)
    assert two.peer_token_s == pytest.approx(four.peer_token_s / 2)
    prompt, alone = StepWork.of([(0, 4096, False)]), replace(four, peer_token_s=0.0)
    more = four.seconds(prompt) - alone.seconds(prompt)
    assert more == pytest.approx(4096 * 1.5 * a_sum / 450e9)


COSTS = st.floats(0, 1e-6)


@st.composite
def latencies(draw: st.DrawFn) -> Latency:
    if draw(st.booleans()):
        batches = draw(st.dictionaries(st.integers(1, 40), COSTS, max_size=4))
        costs = (draw(COSTS) for _ in range(5))
        return BatchLatency(*costs, batches=tuple(sorted(batches.items())))
    return Roofline(
        weight_bytes=draw(st.floats(0, 1e4)),
        kv_token_bytes=draw(st.floats(1, 100)),
        token_flops=draw(st.floats(1, 1e5)),
        pair_flops=draw(st.floats(1, 1e5)),
        bandwidth=1e10,
        flops=1e12,
        expert_bytes=draw(st.sampled_from([0.0, 5e3])),
        expert_share=0.25,
        fixed_s=draw(COSTS),
        peer_token_s=draw(COSTS),
        overlap=draw(st.sampled_from(["max", "max", "sum"])),
    )


@given(latencies(), st.integers(1, 9), st.integers(1, 200), st.integers(1, 40))
def test_a_run_of_decodes_is_its_steps(
    latency: Latency, decodes: int, context: int, steps: int
) -> None:
    clock = StepClock(latency)
    run = clock.decode_run(decodes, context, steps)
    assert 1 <= run.steps <= steps
    durations = [
        clock.step(StepWork(0, decodes, read, read))
        for read in (context + decodes * (i + 1) for i in range(run.steps))
    ]
    assert durations == [run.first + i * run.slope for i in range(run.steps)]
    assert run.duration == sum(durations)
    assert run.moment == sum(i * each for i, each in enumerate(durations))


@given(latencies(), st.integers(0, 500), st.integers(0, 60), st.integers(0, 5000))
def test_the_clock_is_the_latency(
    latency: Latency, prefill: int, decodes: int, context: int
) -> None:
    work = StepWork(prefill, decodes, context + decodes, 3 * context)
    measured = StepClock(latency).step(work) / ATTOSECONDS
    assert measured == pytest.approx(latency.seconds(work), rel=1e-8, abs=1e-14)


@given(st.integers(1, 30), st.integers(1, 50), st.integers(0, 9), st.integers(1, 3000))
def test_a_run_is_cut_at_the_first_step_that_reaches_a_moment(
    steps: int, first: int, slope: int, span: int
) -> None:
    run = DecodeRun(steps, first, slope)
    cut = run.until(span)
    assert cut.steps == steps or cut.duration >= span
    assert cut.steps == 1 or cut.duration_of(cut.steps - 1) < span
