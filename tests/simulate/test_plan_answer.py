"""The answer of ``plan``: what fits, for users, contexts, shared prefixes and other GPUs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sim_runs import Planned

from experiment.commands.main import main
from experiment.report.facts.plan import answer, rows_answer
from experiment.simulate.fit import Question, fit
from experiment.simulate.plan import plan
from experiment.simulate.setup import Memory
from experiment.text.errors import ExitCode
from kvsim.core.blocks import BlockPool
from kvsim.core.scheduler import Request, Scheduler, SchedulerConfig
from kvsim.sizing.gpus import custom_gpu, find_gpu
from kvsim.sizing.models import MODELS

GIB = 1 << 30
MODEL = "llama-3.1-8b"
LLAMA = ("--model", MODEL)
TOKEN_BYTES = 131_072
Plans = Callable[..., Planned]


def capacity(**asked: Any) -> dict[str, Any]:
    memory = Memory(budget=4 * GIB)
    return dict(plan(MODEL, "rtx-4090", memory=memory, **asked)["plan"]["capacity"])


@pytest.mark.parametrize(("context", "prefix"), [(4095, 0), (4095, 2048), (1000, 999), (900, 300)])
def test_as_many_requests_fit_as_the_scheduler_runs(context: int, prefix: int) -> None:
    """One request computes the common beginning; in the next step all others may join it."""
    blocks = 4 * GIB // (16 * TOKEN_BYTES) - 1  # without vLLM's null block
    limits = SchedulerConfig(
        max_num_seqs=blocks, max_num_batched_tokens=blocks * context, prefix_caching=True
    )
    scheduler = Scheduler(BlockPool(blocks, 16), limits)
    common = prefix // 16
    for number in range(blocks):
        keys = [f"{number if place >= common else ''} {place}" for place in range(context // 16)]
        scheduler.add(Request(number, context, 2, lambda n, keys=keys: keys[:n]))
        if number == 0:
            scheduler.complete(scheduler.schedule())
    running = len(scheduler.schedule().chunks)
    assert capacity(context=context, shared_prefix=prefix)["middle"]["requests"] == running


def test_times_of_a_context_are_those_of_a_prompt_and_its_answer() -> None:
    memory = Memory(gpus=2)
    whole = fit("qwen3-32b", "h100", memory, Question(context=8192, price=2.5))
    split = fit("qwen3-32b", "h100", memory, Question([(7168, 1024)], max_length=8192, price=2.5))
    assert whole.answer()["assumed"] == (7168, 1024)
    assert split.answer()["assumed"] is None
    for running in (1, 20, whole.capacity()["most"]):
        assert whole.speed(running) == split.speed(running)


def test_users_fit_perhaps_or_not(planned: Plans) -> None:
    words = ("--gpu", "rtx-4090", "--context", "4096", "--users")
    found = planned(*LLAMA, *words, "1").data["plan"]["capacity"]
    low, high = found["low"]["requests"], found["high"]["requests"]
    assert low < high
    said = set()
    for users in (low, high, high + 1):
        lines = planned(*LLAMA, *words, str(users)).lines
        assert len(lines) <= 15
        said.add(re.sub(r"[\d.]+", "", next(line for line in lines if "sers" in line)))
    assert len(said) == 3


def test_without_a_length_it_is_the_longest_that_surely_starts() -> None:
    found = plan(MODEL, "rtx-4090")["plan"]
    assert found["capacity"]["shortened"]
    assert found["capacity"]["low"]["starts"]
    assert found["max_length"] % 16 == 0
    least = found["capacity"]["low"]["kv"] // TOKEN_BYTES
    assert least - 33 <= found["max_length"] <= least
    roomy = plan("qwen2.5-0.5b", "h100")["plan"]
    assert not roomy["capacity"]["shortened"]
    assert roomy["max_length"] == 32_768


def test_a_gpu_of_ones_own_and_vllms_options() -> None:
    """With the figures of a GPU of the catalogue it is planned as that one."""
    known = find_gpu("rtx-4090")
    own = custom_gpu(known.memory_bytes, known.bandwidth, known.flops)
    one, other = (plan(MODEL, gpu, context=4096)["plan"]["budget"] for gpu in (known, own))
    assert one["kv"] == pytest.approx(other["kv"], rel=0.02)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_of_the_catalogue_is_planned(name: str) -> None:
    found = fit(name, custom_gpu(8 << 40, 1e12, 1e14), Memory(), Question(context=1024))
    capacity, speed = found.capacity(), found.speed(8)
    assert capacity["low"]["requests"] > 1
    assert speed
    assert speed["ttft_s"] > speed["tpot_s"] > 0


def test_more_than_vllm_runs_at_once_is_limited_by_its_sequences() -> None:
    found = plan("gpt2", "rtx-4090", context=256)["plan"]["capacity"]
    assert found["limit"] == "sequences"
    assert found["max_num_seqs"] == 256 < found["low"]["requests"]


def test_json_is_the_plan_that_is_written(
    planned: Plans, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*LLAMA, "--gpu", "rtx-4090", "--context", "4096")
    assert main(["plan", *words, "--json"]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["plan"] == planned(*words).data["plan"]


def test_options_have_vllms_names_too(planned: Plans) -> None:
    ours = ("--gpu", "h100", "--gpus", "2", "--max-length", "4096", "--kv-dtype", "fp8")
    theirs = ("--gpu", "h100", "-tp=2", "--max-model-len", "4096", "--kv_cache_dtype=fp8_e4m3")
    assert planned(*LLAMA, *ours).data["plan"] == planned(*LLAMA, *theirs).data["plan"]


@pytest.mark.parametrize(
    ("words", "told", "not_told"),
    [
        (("--gpu", "h100", "--slo", "tpot=9s"), "slo_met", "limit_tpot"),
        (("--gpu", "h100", "--slo", "tpot=1ms"), "unmet_tpot", "slo_met"),
        (("--gpu", "h100", "--gpu-memory-utilization", "1"), "not_free", "may_not_start"),
        (("--gpu", "h100", "--gpu-memory-utilization", "0.9"), "speed", "not_free"),
        (("--gpu", "rtx-4090", "--users", "9"), "users_remedy", "not_free"),
        (("--gpu", "rtx-4090", "--users", "1"), "users_fit", "users_remedy"),
        (("--gpu", "h100", "-tp=2", "--data-parallel-size", "50"), "engines", "growing"),
    ],
)
def test_an_answer_says_what_follows_from_the_options(
    words: tuple[str, ...], told: str, not_told: str, planned: Plans
) -> None:
    found = {line.key for line in answer(planned(*LLAMA, "--context", "8192", *words).data)}
    assert f"plan.answer.{told}" in found
    assert f"plan.answer.{not_told}" not in found


def test_more_users_get_the_cheapest_option_that_is_enough(planned: Plans) -> None:
    asked = ("--gpu", "rtx-4090", "--context", "8192", "--users", "9")
    remedy = planned(*LLAMA, *asked).data["plan"]["capacity"]["remedy"]
    assert remedy["options"] == "--kv-dtype fp8"
    again = planned(*LLAMA, *asked, "--kv-dtype", "fp8").data["plan"]["capacity"]
    assert again["low"]["requests"] >= 9
    assert remedy["requests"] == again["middle"]["requests"]


def test_layers_in_windows_hold_less_than_vllm_reserves(planned: Plans) -> None:
    for model, told in (("gemma-3-27b", True), ("llama-3.1-8b", False)):
        found = planned("--model", model, "--gpu", "h100", "--context", "8192").data
        assert any(line.key == "plan.in_flight" for line in answer(found)) == told


def test_times_limit_the_requests(planned: Plans) -> None:
    words = ("--gpu", "h100", "--prompt-tokens", "1000", "--new-tokens", "300")
    free = planned(*LLAMA, *words).data["plan"]
    found = planned(*LLAMA, *words, "--slo", "tpot=20ms, ttft=1s", "--price", "3.6").data["plan"]
    assert found["capacity"]["limit"] == "tpot"
    assert found["capacity"]["most"] < free["capacity"]["most"]
    assert found["speed"]["tpot_s"] <= 0.02 < free["speed"]["tpot_s"]
    # A thousandth of a dollar a second.
    assert found["speed"]["usd_per_million_tokens"] == pytest.approx(
        1000 / found["speed"]["tokens_per_s"]
    )
    at = found["vllm_args"].index("--max-num-seqs")
    assert found["vllm_args"][at + 1] == str(found["capacity"]["most"])
    slow = planned(*LLAMA, *words, "--slo", "tpot=9s").data["plan"]["capacity"]
    assert all(slow[name] == free["capacity"][name] for name in ("limit", "most"))
    none = planned(*LLAMA, *words, "--slo", "ttft=1ms").data["plan"]
    assert (none["capacity"]["limit"], none["capacity"]["most"]) == ("ttft", 0)
    assert none["speed"]["ttft_s"] > 0.001  # of one alone


@pytest.mark.parametrize(
    "words",
    [("--slo", "tpot=20"), ("--slo", "latency=1s"), ("--slo", ""), ("--price", "0"),
     ("--price", "h100=2"), ("--compare", "gpu"), ("--pipeline-parallel-size", "64"),
     ("--gpus", "3", "--data-parallel-size", "2"), ("--gpus", "8", "-tp", "2"),
     ("--enable-expert-parallel",), ("--context", "64", "--shared-prefix", "64"),
     ("--vllm-version", "0.1"), ("--max-lora-rank", "8"),
     ("--rate", "3"), ("--context", "64", "--trace", "sharegpt-like"),
     ("--prompt-tokens", "5000", "--new-tokens", "9", "--max-length", "999",
      "--compare", "kv-dtype"),
     ("--shared-prefix", "5000", "--max-length", "999"),
     ("--kv-budget", "50MiB", "--context", "1000", "--compare", "kv-dtype")],
)  # fmt: skip
def test_what_has_no_answer_is_refused(words: tuple[str, ...], refused: Callable[..., str]) -> None:
    assert refused("plan", *LLAMA, "--gpu", "h100", *words)


def test_the_gpus_that_users_need(planned: Plans) -> None:
    """Each choice surely holds them, and half of its GPUs do not."""
    found = planned(*LLAMA, "--users", "50", "--context", "8192").data["choices"]
    assert [row["memory"] for row in found] == sorted(row["memory"] for row in found)
    for row in found[::7]:
        holds = {}
        for gpus in (row["gpus"], row["gpus"] // 2):
            if gpus:
                same = plan(MODEL, row["gpu"], memory=Memory(gpus=gpus), context=8192)
                holds[gpus] = same["plan"]["capacity"]["low"]["requests"] >= 50
        assert holds.pop(row["gpus"])
        assert not any(holds.values())


def test_prices_rank_gpus(planned: Plans) -> None:
    each = {"h100": 2.5, "l40s": 0.9, "b200": 6}
    prices = ",".join(f"{gpu}={usd}" for gpu, usd in each.items())
    words = ("--users", "50", "--context", "8192", "--price", prices)
    found = planned(*LLAMA, *words).data["choices"]
    usd = [row["speed"]["usd_per_hour"] for row in found]
    assert sorted(row["gpu"] for row in found) == ["b200", "h100", "l40s"]
    assert usd == sorted(usd)
    assert usd == [each[row["gpu"]] * row["gpus"] for row in found]
    lines = planned(*LLAMA, *words).lines
    assert found[0]["gpu"] in lines[0]
    assert len(lines) <= 15


def test_options_are_compared_one_at_a_time(planned: Plans) -> None:
    words = ("--gpu", "rtx-4090", "--context", "8192", "--compare", "kv-dtype,gpus,weights")
    found = planned(*LLAMA, *words).data["compared"]
    assert list(found) == ["kv-dtype", "gpus", "weights"]
    alone = plan(MODEL, "rtx-4090", memory=Memory(kv_dtype="fp8"), context=8192)["plan"]
    fp8 = next(row for row in found["kv-dtype"] if row["value"] == "fp8")
    middle = alone["capacity"]["middle"]
    assert (fp8["requests"]["middle"], fp8["tokens"]["middle"]) == (
        middle["requests"], middle["tokens"],
    )  # fmt: skip
    assert [row["gpus"] for row in found["gpus"]] == [1, 2, 4, 8]


@pytest.mark.parametrize(("context", "fewer"), [("800", 0.1), ("8192", None)])
def test_block_sizes_are_compared_with_a_choice(
    context: str, fewer: float | None, planned: Plans
) -> None:
    found = planned(*LLAMA, "--gpu", "rtx-4090", "--context", context, "--compare", "block-size")
    rows = {row["value"]: row["requests"]["middle"] for row in found.data["compared"]["block-size"]}
    (text,) = [each for each in rows_answer(found.data) if "block_size" in each.key]
    if fewer is None:
        assert len(set(rows.values())) == 1
        assert text.key == "plan.compare.block_size_any"
        return
    assert text.params == {"best": 16, "largest": 128, "fewer": 1 - rows[128] / rows[16]}
    assert text.params["fewer"] == pytest.approx(fewer, abs=0.02)
    # A size of which not even one block of a request fits holds none.
    words = ("--kv-budget", "1GiB", "--context", "8100", "--compare", "block-size")
    found = planned(*LLAMA, "--gpu", "rtx-4090", *words)
    (text,) = [each for each in rows_answer(found.data) if "block_size" in each.key]
    assert text.params == {"best": 16, "largest": 128, "fewer": 1.0}


def test_engines_in_parallel_share_requests_and_experts() -> None:
    memory = Memory(gpus=4)
    one = plan("qwen3-30b-a3b", "h100", memory=memory, context=8192)["plan"]
    server = replace(memory.server, data_parallel=2)
    two = plan("qwen3-30b-a3b", "h100", memory=replace(memory, server=server), context=8192)["plan"]
    experts = 0.9 * one["budget"]["weights"]
    assert one["budget"]["weights"] - two["budget"]["weights"] > experts / 2 * 0.9
    assert two["capacity"]["middle"]["requests"] > 2 * one["capacity"]["middle"]["requests"]
    assert two["speed"]["tokens_per_s"] > one["speed"]["tokens_per_s"]


def test_engines_in_parallel_read_the_experts_once() -> None:
    """Eight engines of a GPU read more weights than one of eight, and latent vectors once."""
    server = Memory().server
    one = Memory(gpus=8)
    many = Memory(server=replace(server, data_parallel=8, expert_parallel=True))
    tpot = {}
    for name, memory in (("tensor", one), ("data", many)):
        found = plan("deepseek-v3", "h200", memory=memory, context=1024, users=400)["plan"]
        tpot[name] = found["speed"]["tpot_s"]
    assert 0.7 < tpot["data"] / tpot["tensor"] < 1.4


def test_one_request_on_two_engines_is_as_fast_as_on_one() -> None:
    """Where links count: each engine has two ranks on PCIe."""
    found = []
    for engines in (1, 2):
        server = replace(Memory().server, data_parallel=engines)
        memory = Memory(gpus=2, server=server)
        found.append(plan(MODEL, "l40s", [(4000, 100)], memory, users=1)["plan"]["speed"])
    one, two = ((each["tpot_s"], each["ttft_s"]) for each in found)
    assert one == pytest.approx(two)
    # Nor are four requests faster than one that pass through four stages in turn.
    server = replace(Memory().server, data_parallel=4, pipeline_parallel=4)
    memory = Memory(gpus=4, server=server)
    few, more = (
        plan(MODEL, "h100", [(100_000, 1000)], memory, users=users)["plan"]["speed"]["tpot_s"]
        for users in (1, 4)
    )
    assert few == pytest.approx(more, rel=0.01)


def test_a_cached_prefix_is_not_computed_again() -> None:
    alone, shared = (
        plan(MODEL, "rtx-4090", context=4096, users=5, shared_prefix=prefix)["plan"]["speed"]
        for prefix in (0, 2048)
    )
    assert 0.4 < shared["ttft_s"] / alone["ttft_s"] < 0.6


def test_a_rate_is_served_or_not_and_chooses_gpus(planned: Plans) -> None:
    words = (*LLAMA, "--prompt-tokens", "2000", "--new-tokens", "300", "--rate")
    low, high, over = (planned(*words, rate, "--gpu", "h100").data for rate in ("2", "15", "60"))
    calm, busy = low["plan"]["speed"], high["plan"]["speed"]
    assert calm["running"] == low["load"]["running"] < busy["running"]
    assert calm["rate"] == pytest.approx(2, rel=0.05)
    assert calm["ttft_s"] < busy["ttft_s"]
    assert over["load"]["running"] is None
    assert over["load"]["most"] == pytest.approx(over["plan"]["speed"]["rate"], rel=0.02)
    # Beside users: of the two whatever keeps more requests running, at most what memory holds.
    few, many = (planned(*words, "15", "--gpu", "h100", "--users", n).data for n in ("1", "200"))
    assert few["plan"]["speed"] == busy
    assert many["plan"]["speed"]["running"] == 200
    over = planned(*words, "60", "--gpu", "h100", "--users", "1").data["plan"]
    assert over["speed"]["running"] == over["capacity"]["most"]
    for row in planned(*words, "15", "--price", "h100=2.5,l40s=0.9").data["choices"]:
        assert row["load"]["running"] <= row["requests"]["low"]


@pytest.mark.parametrize(
    ("words", "part"),
    [(("--weights", "fp8"), "--quantization fp8"), (("--kv-dtype", "fp8_e5m2"), "fp8_e5m2"),
     (("--max-num-seqs", "38"), "--max-num-seqs 38")],
)  # fmt: skip
def test_the_command_is_that_of_the_plan(words: tuple[str, ...], part: str, planned: Plans) -> None:
    found = planned(*LLAMA, "--gpu", "h100", "--context", "8K", *words).data["plan"]
    assert part in " ".join(found["vllm_args"])
    assert found["max_length"] == 8192
    assert ("--max-num-seqs" in found["vllm_args"]) == ("--max-num-seqs" in words)


@pytest.mark.parametrize("words", [(MODEL, "--weights", "fp8"), ("Qwen/Qwen3-32B-AWQ",)])
def test_a_low_precision_checkpoint_stays_so_whatever_the_dtype(
    words: tuple[str, ...], planned: Plans
) -> None:
    asked = ("--model", *words, "--gpu", "h100", "--context", "4096")
    one, other = (planned(*asked, *more).data["plan"] for more in ((), ("--dtype", "bfloat16")))
    assert one["budget"]["weights"] == other["budget"]["weights"]


def test_without_prefix_caching_nothing_is_shared() -> None:
    asked = {"context": 4096, "shared_prefix": 2048}
    with_it, without = (
        plan(MODEL, "h100", prefix_caching=caching, **asked)["plan"]["capacity"]
        for caching in (True, False)
    )
    assert without["middle"]["requests"] == with_it["unshared"] < with_it["middle"]["requests"]


def test_a_trace_without_a_gpu_keeps_its_rate(planned: Plans) -> None:
    words = ("--trace", "sharegpt-like", "--requests", "100", "--price", "l40s=1")
    (few,), (many,) = (
        planned(*LLAMA, *words, "--rate", rate).data["choices"] for rate in ("1", "30")
    )
    assert few["load"]["rate"] == pytest.approx(1, rel=0.2)
    assert many["load"]["rate"] == pytest.approx(30, rel=0.2)
    assert many["gpus"] > few["gpus"]


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (("qwen3-32b", "--gpu", "h100", "--max-length", "40960"), "--kv-dtype fp8"),
        (("llama-3.3-70b", "--gpu", "rtx-4090", "--context", "8192"), "--gpus 8"),
        (("llama-3.3-70b", "--gpu", "rtx-4090", "--context", "131072"), "--kv-dtype fp8 --gpus 8"),
        (("llama-3.1-405b", "--gpu", "h100", "--context", "8192"), "--weights w4 --gpus 4"),
        (("llama-3.3-70b", "--gpu", "rtx-4090", "--context", "8192", "-pp", "2"), "--gpus 8"),
        (("llama-3.1-405b", "--gpu", "rtx-4090", "--context", "8192"), None),
    ],
)
def test_where_memory_is_not_enough_the_cheapest_change_is_named(
    words: tuple[str, ...], remedy: str | None, planned: Plans, refused: Callable[..., str]
) -> None:
    error = refused("plan", "--model", *words)
    assert ("enough" in error) == (remedy is not None)
    if remedy is None:
        return
    assert f" {remedy} " in error
    found = planned("--model", *words, *remedy.split()).data["plan"]["capacity"]
    assert found["low"]["requests"] > 0
    assert f"{found['middle']['requests']:,} × {found['length']:,}" in error


def test_users_beyond_the_sequences_do_not_fit() -> None:
    memory = Memory()
    server = replace(memory.server, max_num_seqs=8)
    asked = {"context": 1024, "users": 100}
    found = plan(MODEL, "h100", memory=replace(memory, server=server), **asked)
    assert found["plan"]["capacity"]["limit"] == "sequences"
    assert any(line.key == "plan.answer.users_too_many" for line in answer(found))
