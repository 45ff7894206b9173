"""Workloads, the arms of a round and their order, ratios, tables, the profile's arithmetic."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from experiment.arms.step_profile import ATTEND, STEP, ProfiledSpan, StepTimes, spans_of, split
from experiment.bench.plan import ARMS, Options, base_config, with_run
from experiment.bench.rounds import round_order
from experiment.bench.rows import Row
from experiment.bench.summary import lines
from experiment.bench.workloads import FULL, TINY, ready
from experiment.commands.bench import OPTIONS, plan_of
from experiment.commands.parser import make_parser, parse
from experiment.events import ModelPrepared
from experiment.files.code_cache import numba_cache
from experiment.machine.thread_record import thread_facts
from experiment.machine.thread_variables import bound_cores, thread_variables
from experiment.text import Translator
from experiment.text.messages import message

GPT2 = ModelPrepared(
    name="gpt2", source="random", architecture="a", parameters=124_439_808,
    weights_sha256="0" * 64, dtype="float32", device="cpu", layers=12, kv_heads=12, head_dim=64,
    element_bytes=4, max_positions=1024, vocab_size=50257, eos_token_id=None,
)  # fmt: skip


# -- workloads -----------------------------------------------------------------------------------


def lengths(index: int) -> list[tuple[int, int]]:
    requests = ready(FULL[index], GPT2, 32, seed=0).requests
    return [(len(r.token_ids), r.max_new_tokens) for r in requests]


def test_workloads_hold_the_lengths_that_the_guide_names() -> None:
    assert lengths(0) == [(2, 50), (12, 50), (140, 50), (2, 50)]
    b = lengths(1)
    assert len(b) == 32
    assert {prompt for prompt, _ in b} == {5, 20, 60, 200}
    assert {new for _, new in b} == {50}
    c = lengths(2)
    assert len(c) == 64
    assert {prompt for prompt, _ in c} == {5, 20, 60, 200}
    assert min(new for _, new in c) >= 10
    assert max(new for _, new in c) <= 200
    crowded = ready(FULL[2], GPT2, 32, seed=0)
    assert crowded.budget_bytes == 288 << 20
    assert crowded.max_length == 1024


def test_where_requests_wait_an_eighth_of_the_blocks_is_held_back_and_none_of_slabs() -> None:
    config = base_config(options(), "cpu")
    held = [with_run(config, ["paged"], workload).cache for workload in FULL]
    assert [cache.watermark_for(32, 1024) for cache in held] == [0, 0, 16, 0]
    assert [cache.watermark_for(1024, 1024) for cache in held] == [0, 0, 0, 0]


@pytest.mark.parametrize("workload", [*FULL, *TINY], ids=lambda w: f"{w.name}{w.max_length}")
def test_a_seed_is_a_workload(workload: object) -> None:
    same = [ready(workload, GPT2, 32, seed=1).requests for _ in range(2)]  # type: ignore[arg-type]
    assert same[0] == same[1]
    assert same[0] != ready(workload, GPT2, 32, seed=2).requests  # type: ignore[arg-type]
    assert all(0 <= token < 50257 for request in same[0] for token in request.token_ids)


# -- order ---------------------------------------------------------------------------------------


def test_every_second_round_runs_backwards_and_places_change() -> None:
    arms = ["a", "b", "c"]
    orders = [round_order(arms, number) for number in range(6)]
    assert orders[0] == arms
    assert all(orders[i + 1] == orders[i][::-1] for i in (0, 2, 4))
    for place in range(3):
        assert {order[place] for order in orders} == set(arms)
    assert round_order([], 3) == []


def options(**changes: object) -> Options:
    given: dict[str, object] = {
        "workloads": ("A", "B", "C"), "arms": ARMS, "named": False, "rounds": 5, "least": 2,
        "limit_s": 900.0, "threads": 2, "tiny": False, "profile": False, "out": Path("none"),
    }  # fmt: skip
    return Options(**{**given, **changes})  # type: ignore[arg-type]


ONE_BY_ONE = "contiguous.sequential"


@pytest.mark.parametrize(
    ("asked", "device", "workload", "number", "without"),
    [
        (options(), "cpu", "C", 0, {ONE_BY_ONE}),
        (options(), "cpu", "B", 0, set()),
        (options(), "cpu", "B", 4, {ONE_BY_ONE}),
        (options(), "cpu", "C", 1, {ONE_BY_ONE, "transformers_paged", "vllm"}),
        (options(named=True), "cpu", "C", 3, set()),
        (options(usual=True), "cpu", "C", 0, {ONE_BY_ONE}),
        *((options(usual=True), "cuda", each, 2, set()) for each in "ABCD"),
    ],
)
def test_slow_arms_run_in_few_rounds_on_a_cpu_unless_they_are_named(
    asked: Options, device: str, workload: str, number: int, without: set[str]
) -> None:
    here = asked.for_device(device)
    assert set(here.arms_of(workload, number)) == {*here.arms} - without
    told = {(each.workload, each.arm): each.rounds for each in here.left_out()}
    slow = device == "cpu" and not asked.named
    assert (told.get(("C", ONE_BY_ONE)), told.get(("C", "vllm"))) == (
        (0, 1) if slow else (None, None)
    )


def test_a_round_that_would_end_too_late_is_not_begun() -> None:
    asked = options(limit_s=100.0, least=2)
    assert asked.begins(1, passed_s=99, expected_s=80)  # two rounds whatever the time
    assert asked.begins(2, passed_s=20, expected_s=80)
    assert not asked.begins(2, passed_s=21, expected_s=80)
    assert options(limit_s=None).begins(4, passed_s=1e9, expected_s=80)


def test_an_arm_that_is_no_default_runs_where_it_is_named() -> None:
    growing = "contiguous.growing"
    assert growing not in options(usual=True).for_device("cuda").arms
    asked = parse(make_parser(Translator("en"), "bench", OPTIONS), ["--arms", f"{growing},paged"])
    assert plan_of(asked, Path("none")).arms_of("C", 0) == [growing, "paged"]


def test_vllm_is_bound_to_as_many_cores_as_others_have_threads() -> None:
    cores = bound_cores(2).split(",")
    assert len(cores) == len(set(cores)) <= 2
    config = base_config(options(threads=1), "cpu")
    assert config.vllm.threads_bind == bound_cores(1)
    assert base_config(options(threads=None), "cuda").vllm.threads_bind == "nobind"


def test_threads_that_nobody_named_are_two_and_torchs_own_on_a_gpu() -> None:
    assert options(threads=None).for_device("cpu").threads == 2
    assert options(threads=None).for_device("cuda").threads is None
    assert [options(threads=3).for_device(device).threads for device in ("cpu", "cuda")] == [3, 3]


def test_thread_pools_are_told_before_they_are_made() -> None:
    told = thread_variables(2, {})
    counts = {name: told[name] for name in told if name.endswith("NUM_THREADS")}
    assert set(counts) == {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"}
    assert set(counts.values()) == {"2"}
    assert Path(told["NUMBA_CACHE_DIR"]) == numba_cache()
    assert "NUMBA_CACHE_DIR" not in thread_variables(2, {"NUMBA_CACHE_DIR": "mine"})
    assert not any(name.endswith("NUM_THREADS") for name in thread_variables(None, {}))


# -- ratios --------------------------------------------------------------------------------------


def row(workload: str, arm: str, number: int, **figures: object) -> Row:
    told = {"workload": workload, "arm": arm, "round": number, "status": "finished"}
    return Row.model_validate(told | figures)


RATES = [
    row("B", "paged", 0, useful_tokens_per_s=200.0),
    row("B", "contiguous.batch", 0, useful_tokens_per_s=50.0),
    row("B", "contiguous.batch", 1, useful_tokens_per_s=20.0),  # a slow moment
    row("B", "paged", 1, useful_tokens_per_s=70.0),
    row("B", "paged", 2, useful_tokens_per_s=180.0),
    row("B", "contiguous.batch", 2, useful_tokens_per_s=60.0),
    row("B", "paged", 3, useful_tokens_per_s=1000.0),  # the other one has no rate here
    row("B", "contiguous.batch", 3),
    row("A", "paged", 0, useful_tokens_per_s=1.0),
]


def test_the_factors_of_a_workload_are_its_own() -> None:
    of_a = row("A", "contiguous.batch", 0, useful_tokens_per_s=8.0)
    found = {(each.workload, each.arm): each.factors for each in lines([*RATES, of_a])}
    assert found["B", "contiguous.batch"] == [4.0, 3.5, 3.0]
    assert found["A", "contiguous.batch"] == [0.125]
    assert found["B", "paged"] == []


@pytest.mark.parametrize(
    ("told", "factors"),
    [
        ({"equal_requests": 10}, [4.0]),
        ({"equal_requests": 9}, []),
        ({"equal_requests": 10, "equal_first_tokens": 2}, [4.0]),
        ({"problems": [message("bench.problem.no_steps")]}, []),
        ({"reason": message("failure.no_end")}, []),
        *(
            ({"dtype": dtype, "equal_requests": 0, "equal_first_tokens": alike}, factors)
            for dtype in ("float16", "bfloat16")
            # Files of older versions do not count first tokens.
            for alike, factors in ((10, [4.0]), (9, [4.0]), (8, []), (None, [4.0]))
        ),
    ],
)
def test_a_ratio_is_of_rows_without_problems_and_with_the_tokens_of_the_reference(
    told: dict[str, Any], factors: list[float]
) -> None:
    other = row("B", "vllm", 0, useful_tokens_per_s=50.0, requests=10)
    ours = row("B", "paged", 0, useful_tokens_per_s=200.0, requests=10)
    for rows in ([ours, other.model_copy(update=told)], [other, ours.model_copy(update=told)]):
        assert {each.arm: each.factors for each in lines(rows)}["vllm"] == factors


# -- D, of a GPU ---------------------------------------------------------------------------------


def test_the_workload_of_gpus_is_run_there_and_when_it_is_asked_for() -> None:
    assert lengths(3) == [(p, 256) for p, _ in lengths(3)]
    assert len(lengths(3)) == 64
    usual = options(usual=True)
    assert [w.name for w in usual.for_device("cpu").chosen] == ["A", "B", "C"]
    assert usual.for_device("cpu").arms == ARMS
    on_gpu = usual.for_device("cuda")
    assert [w.name for w in on_gpu.chosen] == ["A", "B", "C", "D"]
    assert set(on_gpu.arms) == {*ARMS, "contiguous.compiled"}
    assert base_config(on_gpu, "cuda").run.arms == on_gpu.arms
    assert [w.name for w in options(workloads=("B",)).for_device("cuda").chosen] == ["B"]
    assert options(named=True, arms=("paged",)).for_device("cuda").arms == ("paged",)


# -- profile -------------------------------------------------------------------------------------


def test_the_outermost_operations_of_a_step_are_counted_once() -> None:
    spans = [
        ProfiledSpan("aten::embedding", 0, 50),  # before any step
        ProfiledSpan(STEP, 100, 1100),
        ProfiledSpan("aten::layer_norm", 110, 130),
        ProfiledSpan("aten::native_layer_norm", 112, 128),
        ProfiledSpan("aten::addmm", 200, 500),
        ProfiledSpan("aten::copy_", 210, 220),
        ProfiledSpan(ATTEND, 500, 700),
        ProfiledSpan("aten::bmm", 510, 600),  # a product inside attention is attention
        ProfiledSpan("mkldnn::_linear_pointwise", 700, 900),
        ProfiledSpan(STEP, 2000, 2100),
        ProfiledSpan("aten::argmax", 2010, 2020),
        ProfiledSpan("aten::mm", 2100, 2200),  # behind the step
    ]
    first, second = split(reversed(spans))
    assert first == StepTimes(1.0, pytest.approx(0.5), pytest.approx(0.2), pytest.approx(0.02))
    assert first.rest == pytest.approx(0.28)
    assert second == StepTimes(0.1, 0.0, 0.0, pytest.approx(0.01))


def event(name: str, start: float, end: float, device: str = "CPU", thread: int = 1) -> Any:
    """As torch's profiler lists it."""
    return SimpleNamespace(
        name=name, thread=thread, device_type=SimpleNamespace(name=device),
        time_range=SimpleNamespace(start=start, end=end),
    )  # fmt: skip


def test_on_a_gpu_its_kernels_are_counted_and_not_the_thread_that_starts_them() -> None:
    events = [
        event(STEP, 0, 1000),
        event(STEP, 5, 995, "CUDA", 0),  # the mark once more, as the profiler shows it there
        event(ATTEND, 100, 300, "CUDA", 0),
        event("aten::addmm", 10, 900),
        event("ampere_sgemm_128x64_tn", 20, 120, "CUDA", 0),
        event("nvjet_hsh_64x8_splitK_TNT", 120, 170, "CUDA", 0),
        event("_decode", 200, 260, "CUDA", 0),
        event("_combine", 260, 270, "CUDA", 0),
        event("void at::native::vectorized_elementwise_kernel<4>", 300, 340, "CUDA", 0),
        event("Memcpy DtoH (Device -> Pinned)", 330, 335, "CUDA", 0),  # beside it: costs nothing
        event("ampere_sgemm_128x64_tn", 1500, 1700, "CUDA", 0),  # behind the step
    ]
    (parts,) = split(spans_of(events, on_gpu=True))
    assert parts == StepTimes(1.0, *(pytest.approx(n) for n in (0.15, 0.07, 0.04)))
    assert parts.rest == pytest.approx(0.74)
    (host,) = split(spans_of(events, on_gpu=False))
    assert host.matrix == pytest.approx(0.89)
    assert host.attention == 0.0


# -- what the figures stand on -------------------------------------------------------------------


def test_variables_of_thread_pools_and_of_a_gpu_are_written_down_and_no_others() -> None:
    given = {"OMP_NUM_THREADS": "2", "KMP_BLOCKTIME": "0", "HOME": "x", "SECRET": "y"}
    given |= dict.fromkeys(
        ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "CUBLAS_WORKSPACE_CONFIG"), "x:1"
    )
    given |= {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    given |= {"GOMP_SPINCOUNT": "9", "VLLM_CPU_OMP_THREADS_BIND": "0", "MKL_NUM_THREADS": "2"}
    assert thread_facts(given).keys() == given.keys() - {"HOME", "SECRET"}


def test_a_library_that_is_loaded_before_is_named_without_its_place() -> None:
    given = {"LD_PRELOAD": "/home/anna/env/lib/libgomp.so.1:/opt/x/libtcmalloc.so /y/libz.so"}
    assert thread_facts(given) == {"LD_PRELOAD": "libgomp.so.1 libtcmalloc.so libz.so"}
